# SPDX-License-Identifier: Apache-2.0
"""Check a training's evidence again, without dpfed: python check_evidence.py OUT [ROSTER]."""

import base64
import hashlib
import json
import math
import re
import sys
import tomllib
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from scipy.integrate import quad
from scipy.optimize import brentq

FILES = "terms.toml roster.json statements.jsonl receipts.jsonl rounds.jsonl guarantee.json"
FILES = {
    *f"{FILES} history.jsonl sbom.json index.json".split(),
    "audit.json",
    "roster.sig",
    "ca.crt",
}
SAME = "training clients terms terms_sha256 contract plan unit adjacency trust rounds attempts"
SAME += " claims assumes"
WHOLE = "sentence epsilon claims unit adjacency trust rounds noise idealized shares draws colluders"
WHOLE += " budgeted correlated enforced realised blocks opinions"
UNITS = {"record": "record", "client": "client"}
UNITS["group"] = "person, with all of their records at one client"
ACROSS = (
    "with {} of the data's blocks (in which block a {} is, as by the month of arrival, is not "
    "protected, and no figure holds for the whole data set)"
)


class Missing(Exception):
    """Something is only not there."""


def need(true, what, kind=ValueError):
    if not true:
        raise kind(what)


def strict(raw):  # JSON with one reading
    def once(pairs):
        need(len(dict(pairs)) == len(pairs), "a key twice")
        return dict(pairs)

    return json.loads(raw.decode(), object_pairs_hook=once, parse_constant=lambda _: need(0, "NaN"))


def digest(tree):
    text = (
        tree if isinstance(tree, bytes) else json.dumps(tree, sort_keys=True, separators=(",", ":"))
    )
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def lines(files, name):
    return [strict(line) for line in files.get(name, b"").splitlines()]


def signed(envelope, keys, kind):  # (silo, digest of the model, what it says)
    payload, mark = base64.b64decode(envelope["payload"]), envelope["signatures"][0]
    need(len(envelope["signatures"]) == 1 and mark["keyid"] in keys, "a foreign key")
    text = b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(mark["keyid"]))
    key.verify(base64.b64decode(mark["sig"]), text)
    said = strict(payload)
    need(said["predicateType"] == f"urn:dpfed:{kind}:1", "another kind")
    need(said["predicate"]["client"] == keys.index(mark["keyid"]), "signed as another silo")
    return said["predicate"]["client"], said["subject"][0]["digest"]["sha256"], said["predicate"]


def releases(event, count=1):  # (noise multiplier, sampling rate, how often)
    if event["kind"] == "Composed":
        return [each for part in event["events"] for each in releases(part, count)]
    if event["kind"] == "SelfComposed":
        return releases(event["event"], count * event["count"])
    return [(event.get("event", event)["noise_multiplier"], event.get("rate", 1.0), count)]


def epsilon(claim, adjacency):  # by integration of two Gaussians: no closed form
    moved = 2 if adjacency == "replace-one" else 1
    made = releases(claim["event"])
    need(all(rate == 1 for _, rate, _ in made), "draws: use check_epsilon.py")
    mu = math.sqrt(math.fsum(n * (moved / z) ** 2 for z, _, n in made))

    def excess(e):
        start = e / mu + mu / 2
        both = lambda x: math.exp(-((x - mu) ** 2) / 2) - math.exp(e - x * x / 2)  # noqa: E731
        whole = quad(both, start, start + 12, epsabs=0, epsrel=1e-12, limit=200)[0]
        return whole / math.sqrt(2 * math.pi) - claim["delta"] + claim["delta_reserved"]

    return brentq(excess, 0, mu * (mu / 2 + 40), rtol=1e-12)


def sentence(told):  # of what stands beside it, but for the figures, which are looked at elsewhere
    figures = iter(re.findall(r"\([^ (),]+, [^ (),]+\)-DP", told["sentence"]))
    said = [f"{next(figures, '')} against {each['adversary']}" for each in told["claims"]]
    blocks, whose = told.get("blocks", ()), {"group": "person"}.get(told["unit"], told["unit"])
    inside = " inside its block" * bool(blocks)
    unit = f" for each {UNITS[told['unit']]} ({told['adjacency']}{inside}), against "
    rounds = f"over {told['rounds']} round{'s' * (told['rounds'] != 1)}"
    alone = told["enforced"] and told["unit"] != "client"
    points = [", and ".join([said[0].replace(" against ", unit, 1), *said[1:]]), rounds]
    points.append(told["enforced"])
    points += [ACROSS.format(len(blocks), whose)] * bool(blocks)
    points += ["if no record stops or delays its silo's work"] * bool(alone)
    if told["trust"] != "central" and not told["budgeted"]:
        points.append("if the server starts no other training on the data")
    kinds = ("exact integer arithmetic", "idealized arithmetic")
    keyed = "noise keyed by a seed (research only)"
    noise = keyed if told["noise"] == "keyed" else "noise from the operating system"
    ends = [told["claims"][0]["accounting"], told["draws"], kinds[told["idealized"]], noise]
    return "; ".join(filter(None, [", ".join(filter(None, points)), *ends])) + "."


def model(path, names):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = {k: v for k, v in strict(raw[8 : 8 + size]).items() if k != "__metadata__"}
    need(sorted(head) == sorted(names), "other parameters")
    ends = [[8 + size + n for n in head[name]["data_offsets"]] for name in names]
    shapes = json.dumps([[name, head[name]["shape"]] for name in names], separators=(",", ":"))
    need(all(head[name]["dtype"] == "F32" for name in names), "float32")
    return digest(shapes.encode() + b"\n" + b"".join(raw[a:b] for a, b in ends))


def columns_of(contract):  # what decides how a record is read
    if not contract:
        return None
    names = ["name", "kind", "words", "range", "scale", "missing", "unit", "column"]
    parts = [*contract["columns"], contract.get("label") or {}]
    plain = [{k: part[k] for k in names if part.get(k) not in (None, "", [])} for part in parts]
    return [{**part, "scale": part.get("scale", "linear")} for part in plain]


def alike(one, other):  # as text: true is no 1, and 1.0 is 1
    texts = (
        json.dumps(json.loads(json.dumps(tree), parse_int=float), sort_keys=True)
        for tree in (one, other)
    )
    return len({*texts}) == 1


def whole(*numbers):
    need(all(type(n) is int and n >= 0 for n in numbers), "a whole number")


def whole_numbers(rounds):
    for each in rounds:
        whole(each["round"], each["attempt"], *each.get("clients", []), *each.get("cohort", []))


def who(told, committed, names, sizes):  # as the guarantee says who took part
    names = names if told["roster"] is True else [f"client {at}" for at in range(len(names))]
    lists = [sorted(each["clients"]) for each in committed]
    of = {name: sum(at in each for each in lists) for at, name in enumerate(names)}
    need(alike(told["rounds_of"], of), "who took part")
    runs = [(r["from"], r["to"], r["clients"]) for r in told["rounds"]]
    whole(*[n for a, b, _ in runs for n in (a, b)])
    need(all(b - a < len(lists) for a, b, _ in runs), "who took part")
    named = [[at, clients] for a, b, clients in runs for at in range(a, b + 1)]
    need(named == [[at + 1, [names[c] for c in each]] for at, each in enumerate(lists)], "who")
    facts = {"planned": len(names), "took_part": sum(map(bool, of.values()))}
    facts |= {"fewest": min(map(len, lists)), "most": max(map(len, lists))}
    facts["units"] = sum(size for size, name in zip(sizes, names, strict=True) if of[name])
    need(all(alike(told[k], v) for k, v in facts.items()), "how many took part")
    need(len(told) == len(facts) + 3, "who took part")


def check_bundle(path, told, terms):
    if not path.exists():
        return
    about = strict(path.read_bytes())
    words = {*about["guarantee"], *WHOLE.split()}
    need(
        all(alike(about["guarantee"].get(k), told.get(k)) for k in words), "the bundle's guarantee"
    )
    mine, agreed = about["input"], tomllib.loads(terms.decode()).get("terms", {})
    same = columns_of(mine.get("contract")) == columns_of(agreed.get("contract"))
    need(same, "the bundle's contract")


def check(out, roster=None):
    there = list((out / "evidence").iterdir())
    need(all(p.name in FILES and p.is_file() and not p.is_symlink() for p in there), "a stray file")
    need(all(p.stat().st_size < 1 << 27 for p in there), "a file too large")
    files = {p.name: p.read_bytes() for p in there}
    needed = FILES - {"receipts.jsonl", "rounds.jsonl", "audit.json", "roster.sig", "ca.crt"}
    need(needed <= set(files), "a file is missing", Missing)
    index, told = strict(files["index.json"]), strict(files["guarantee.json"])
    need({*index["files"], "index.json"} <= set(files), "a listed file is missing", Missing)
    same = {name: digest(raw) for name, raw in files.items() if name != "index.json"}
    need(same == index["files"], "a changed file")
    keys = [each["key"] for each in strict(roster or files["roster.json"])["clients"]]
    need(keys == [each["key"] for each in strict(files["roster.json"])["clients"]], "keys")
    need((out / "guarantee.json").read_bytes() == files["guarantee.json"], "another guarantee")
    found = [signed(each, keys, "statement") for each in lines(files, "statements.jsonl")]
    kept = [signed(each, keys, "receipt") for each in lines(files, "receipts.jsonl")]
    need(found, "no statement", Missing)
    first, stated = found[0][2], {client: said for client, _, said in found}
    need(len(stated) == len(found), "two statements")
    for _, end, said in found:
        need(end == found[0][1] and all(said[n] == first[n] for n in SAME.split()), "they disagree")
    need(
        first["clients"] == len(keys) and first["training"] == index["training"], "another training"
    )
    need(first["terms_sha256"] == digest(files["terms.toml"]), "other terms")
    rounds = lines(files, "rounds.jsonl")
    cohorts = {(each["round"], each["attempt"]): each["cohort"] for each in rounds}
    need(len(cohorts) == len(rounds), "two cohorts")
    receipts, absent, sent, seen = (
        {(c, r["round"], r["attempt"]): (m, r) for c, m, r in kept},
        0,
        {},
        {},
    )
    need(len(receipts) == len(kept), "two receipts")
    whole_numbers([*index["committed"], *rounds])
    for client, said in stated.items():
        absent += said["open"] is not False  # it may still answer
        before = "0" * 64
        for each in said["answered"]:
            at = each["round"], each["attempt"]
            body = {k: each[k] for k in ("round", "attempt", "shared", "cohort")}
            body |= {k: said[k] for k in ("training", "plan", "client")} | {"before": before}
            before = digest([each["model"], body])
            m, r = receipts.pop((client, *at), (None, {}))
            absent += m is None
            need(
                m is None or digest([m, {k: v for k, v in r.items() if k != "reply"}]) == before,
                "chain",
            )
            told_model = sent.setdefault(at, (each["model"], each["shared"]))
            need(told_model == (each["model"], each["shared"]), "two broadcasts")
            absent += at not in cohorts
            asked = cohorts.get(at, [client])
            need(at not in cohorts or each["cohort"] == digest(sorted(asked)), "a cohort")
            need(client in asked and client not in seen.setdefault(at, set()), "not asked")
            seen[at].add(client)
        need(before == said["chain"], "a broken chain")
    need(not [at for at in receipts if at[0] in stated], "an old statement")
    need(len(seen) <= first["attempts"], "too many attempts")
    for place, each in enumerate(index["committed"]):
        answered = seen.get((each["round"], each["attempt"]), set())
        need(each["round"] == place and each["clients"], "other rounds")
        need(set(each["clients"]) & set(stated) <= answered, "in a total, and did not answer")
    done = [row["round"] for row in lines(files, "history.jsonl") if not row.get("aborted")]
    need(done == list(range(1, len(done) + 1)), "the history")
    need(told["rounds"] == len(index["committed"]) == len(done) <= first["rounds"], "rounds")
    roster_names = [each["name"] for each in strict(roster or files["roster.json"])["clients"]]
    sizes = tomllib.loads(files["terms.toml"].decode())["terms"]["sizes"]
    who(told["answered"], index["committed"], roster_names, sizes)
    need(alike(told.get("participants", len(keys)), len(keys)), "how many take part")
    need(told.get("training", first["training"]) == first["training"], "another training")
    own = {each["adversary"]: each for each in first["claims"]}
    for each in told["claims"]:
        mine = own.get(each["adversary"])
        need(mine is not None, "an unsigned claim", Missing)
        need(all(each[k] == mine[k] for k in ("event", "delta", "delta_reserved")), "a claim")
        again = epsilon(mine, first["adjacency"])
        need(again <= mine["epsilon"] * (1 + 1e-6), "an epsilon below its events")
        need(
            again <= each["epsilon"] * (1 + 1e-6) and mine["epsilon"] <= each["epsilon"], "epsilon"
        )
        need(each["accounting"] == mine["accounting"], "an accountant")
        moved = 2 if first["adjacency"] == "replace-one" else 1
        mu = math.sqrt(sum(n * (moved / z) ** 2 for z, _, n in releases(each["event"])))
        need(abs(each["mu"] / mu - 1) < 1e-9, "a mu")
    need(told["sentence"] == sentence(told), "the sentence")
    need(all(told.get(k, "") == v for k, v in first["assumes"].items()), "an assumption")
    room = all(said["budget"] == "the ledger had room for it" for said in stated.values())
    need(room or not told["budgeted"], "no budget")
    printed = [float(e) for e in re.findall(r"\(([^ (),]+), [^()]+\)-DP", told["sentence"])]
    need(len(printed) == len(told["claims"]) <= len(own), "the sentence")
    for number, each in zip(printed, told["claims"], strict=True):
        need(each["epsilon"] * (1 - 1e-9) <= number <= each["epsilon"] * 1.001, "the sentence")
    need(
        told["epsilon"]
        == max(e["epsilon"] for e in told["claims"])
        >= max(e["epsilon"] for e in first["claims"]),
        "epsilon",
    )
    same = ("unit", "adjacency", "trust", "blocks")
    need(all(told.get(k) == first.get(k) for k in same), "the unit")
    gated = all(said["by"].startswith("a process of the data's owner") for said in stated.values())
    kinds = ["if the app that the server ships is the reviewed one"]
    kinds += ["enforced by each silo's own process"] * gated
    need(told["enforced"] in kinds, "who enforces it")
    need(strict(files["sbom.json"])["bomFormat"] == "CycloneDX", "the bill of materials")
    sent_models = {m for m, _ in sent.values()} | {found[0][1]}
    for path in (out / "model.safetensors", out / "model" / "model.safetensors"):
        known = not path.exists() or model(path, index["layout"]) in sent_models
        need(known, "another model")
    check_bundle(out / "model" / "model.json", told, files["terms.toml"])
    need(set(stated) == set(range(len(keys))) and not absent, "a statement or receipt", Missing)


def verdict(out, roster=None):
    try:
        check(Path(out), roster)
    except (Missing, FileNotFoundError) as error:
        return "incomplete", str(error)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OSError,
        InvalidSignature,
    ) as error:
        return "refused", f"{type(error).__name__}: {error}"
    return "complete", ""


if __name__ == "__main__":
    print(*verdict(sys.argv[1], Path(sys.argv[2]).read_bytes() if sys.argv[2:] else None))
