# SPDX-License-Identifier: Apache-2.0
"""Evidence of a real gated training, and what is found in packs that somebody has changed.

Each tampered pack is named by ``dpfed verify``; examples/check_evidence.py, which has nothing of
dpfed, comes to the same verdict on all of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from dpfed.accounting.guarantee import Guarantee
from dpfed.cli.main import app
from dpfed.core.dsse import Statement, canonical_json, claimed_key, make_statement, open_statement
from dpfed.core.errors import DataError, RecipeError
from dpfed.data.contract import contract_of
from dpfed.recipes.verify import (
    COMPLETE,
    INCOMPLETE,
    REFUSED,
    description_problem,
    verify_evidence,
)
from dpfed.sums.secagg.identity import SigningKey, own_key
from tests.helpers.evidence_packs import SILOS, gated_training

CHECK = Path(__file__).parents[2] / "examples" / "check_evidence.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three silos, and of the server's result."""
    folder = tmp_path_factory.mktemp("evidence")
    gated_training(folder)
    return folder


@pytest.fixture(scope="module")
def other_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_evidence", CHECK)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Pack:
    """A copy of the evidence that a test may spoil, with the silos' own keys."""

    def __init__(self, trained: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.out = Path(shutil.copytree(trained / "out", folder / "out"))
        self.evidence = self.out / "evidence"
        self.roster = folder / "roster.json"  # as a verifier has it from elsewhere
        shutil.copy(self.evidence / "roster.json", self.roster)
        self.keys = [own_key(trained / f"silo-{n}" / "state") for n in range(SILOS)]
        self.stranger = own_key(folder / "stranger", make=True)

    def read(self, name: str) -> Any:
        return json.loads((self.evidence / name).read_bytes())

    def write(self, name: str, content: Any) -> None:
        """Change a file, and list it as it is now: so would whoever wants to deceive."""
        raw = content if isinstance(content, bytes) else canonical_json(content)
        (self.evidence / name).write_bytes(raw)
        if name != "index.json":
            self.index(files={**self.read("index.json")["files"], name: sha256(raw)})

    def index(self, **changes: Any) -> None:
        self.write("index.json", {**self.read("index.json"), **changes})

    def lines(self, name: str) -> list[bytes]:
        return (self.evidence / name).read_bytes().splitlines()

    def put(self, name: str, lines: list[bytes]) -> None:
        self.write(name, b"".join(line + b"\n" for line in lines))

    def guarantee(self, change: Callable[[dict[str, Any]], None]) -> None:
        told = self.read("guarantee.json")
        change(told)
        self.write("guarantee.json", told)
        shutil.copy(self.evidence / "guarantee.json", self.out)

    def opened(self, line: bytes) -> Statement:
        return open_statement(line, claimed_key(line))

    def restate(self, silo: int, key: SigningKey | None = None, **changes: Any) -> None:
        """A statement that the silo itself, or another key, has signed."""
        lines = self.lines("statements.jsonl")
        said = self.opened(lines[silo])
        signer = key or self.keys[silo]
        subject = {"model": changes.pop("model", said.subject["model"])}
        made = Statement(subject, said.predicate_type, {**said.predicate, **changes})
        lines[silo] = make_statement(made, signer.sign, signer.public)
        self.put("statements.jsonl", lines)


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def drop_silo(pack: Pack) -> None:
    pack.put("statements.jsonl", pack.lines("statements.jsonl")[:2])
    kept = [
        each for each in pack.lines("receipts.jsonl") if claimed_key(each) != pack.keys[2].public
    ]
    pack.put("receipts.jsonl", kept)


def drop_from_roster(pack: Pack) -> None:
    drop_silo(pack)
    roster = pack.read("roster.json")
    pack.write("roster.json", {**roster, "clients": roster["clients"][:2]})


def one_round_more(pack: Pack) -> None:
    last = pack.read("index.json")["committed"][-1]
    pack.index(
        committed=[*pack.read("index.json")["committed"], {**last, "round": last["round"] + 1}]
    )
    rows = pack.lines("history.jsonl")
    pack.put(
        "history.jsonl", [*rows, canonical_json({**json.loads(rows[-1]), "round": len(rows) + 1})]
    )
    pack.guarantee(lambda told: told.update(rounds=told["rounds"] + 1))


def one_round_less(pack: Pack) -> None:
    pack.index(committed=pack.read("index.json")["committed"][:-1])
    pack.put("history.jsonl", pack.lines("history.jsonl")[:-1])


def consistent(told: dict[str, Any]) -> None:
    """All that follows from the claims follows from them again, as in a file of dpfed's own."""
    stated = msgspec.convert(told, Guarantee, strict=False)
    told.update(stated.to_json())


def smaller_epsilon(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        told["claims"][0]["epsilon"] = told["epsilon"] = 1.5
        told["sentence"] = told["sentence"].replace("(2, ", "(1.5, ")

    pack.guarantee(change)


def smaller_claim_of_others(pack: Pack) -> None:
    """The second claim alone: the largest is as it was."""

    def change(told: dict[str, Any]) -> None:
        assert "(1.362, " in told["sentence"]
        told["claims"][1]["epsilon"] = 0.5
        told["sentence"] = told["sentence"].replace("(1.362, ", "(0.5, ")

    pack.guarantee(change)


def smaller_sentence(pack: Pack) -> None:
    pack.guarantee(lambda told: told.update(sentence=told["sentence"].replace("(2, ", "(0.2, ")))


def more_noise(pack: Pack) -> None:
    text = canonical_json(pack.read("guarantee.json")["claims"][0]["event"]).decode()
    louder = json.loads(re.sub(r'"noise_multiplier":[0-9.]+', '"noise_multiplier":99.0', text))

    def change(told: dict[str, Any]) -> None:
        told["claims"][0].update(event=louder)
        consistent(told)

    pack.guarantee(change)


def larger_delta(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        for claim in told["claims"]:
            claim["delta"] = 1e-3
        told["sentence"] = told["sentence"].replace("1e-05", "0.001")

    pack.guarantee(change)


def fewer_claims(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        told["claims"] = told["claims"][1:]
        consistent(told)

    pack.guarantee(change)


def says(name: str, value: Any, before: str, after: str) -> Callable[[Pack], None]:
    """A guarantee that says better of itself than the silos do, in a field and in its sentence."""

    def change(told: dict[str, Any]) -> None:
        assert before in told["sentence"], told["sentence"]
        told.update({name: value}, sentence=told["sentence"].replace(before, after))

    return lambda pack: pack.guarantee(change)


IDEAL, RESEARCH = "idealized arithmetic", "noise keyed by a seed (research only)"
DRAWN = (
    "each record is drawn for a release with probability 0.01, known to its client only (how long "
    "a release takes is not covered)"
)
exact_arithmetic = says("idealized", False, IDEAL, "exact integer arithmetic")
system_noise = says("noise", "os", RESEARCH, "noise from the operating system")
drawn_records = says("draws", DRAWN, IDEAL, f"{DRAWN}; {IDEAL}")


GATE = "enforced by each silo's own process"
a_notary = says("enforced", "certified by a notary", GATE, "certified by a notary")


def nobody_enforces_it(pack: Pack) -> None:
    """Without a word on who enforces it, the sentence loses a condition, too."""

    def change(told: dict[str, Any]) -> None:
        conditions = f", {GATE}, if no record stops or delays its silo's work"
        assert conditions in told["sentence"]
        told.update(enforced="", sentence=told["sentence"].replace(conditions, ""))

    pack.guarantee(change)


def another_accountant(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        name = told["claims"][0]["accounting"]
        told["sentence"] = told["sentence"].replace(name, "PLD accounting (dp_accounting)")
        for claim in told["claims"]:
            claim["accounting"] = "PLD accounting (dp_accounting)"

    pack.guarantee(change)


def smaller_headline(pack: Pack) -> None:
    pack.guarantee(lambda told: told.update(epsilon=0.1))


def person_in_the_sentence(pack: Pack) -> None:
    words = "for each person, with all of their records at one client"
    pack.guarantee(
        lambda told: told.update(sentence=told["sentence"].replace("for each record", words))
    )


def no_budget(pack: Pack) -> None:
    pack.restate(1, budget="none is declared")


def another_unit(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        told["unit"] = "client"
        told["sentence"] = told["sentence"].replace("for each record", "for each client")

    pack.guarantee(change)


def blocks_that_no_silo_has(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        told["blocks"] = ["2026-01"]
        told["sentence"] = msgspec.convert(told, Guarantee, strict=False).sentence

    pack.guarantee(change)


def other_terms(pack: Pack) -> None:
    text = (pack.evidence / "terms.toml").read_text()
    assert "epsilon = 2.0" in text
    pack.write("terms.toml", text.replace("epsilon = 2.0", "epsilon = 0.5").encode())


def foreign_key(pack: Pack) -> None:
    pack.restate(1, pack.stranger)


def foreign_key_and_roster(pack: Pack) -> None:
    pack.restate(1, pack.stranger)
    roster = pack.read("roster.json")
    roster["clients"][1]["key"] = pack.stranger.public.hex()
    pack.write("roster.json", roster)
    lines = pack.lines("receipts.jsonl")
    for place, line in enumerate(lines):
        if claimed_key(line) == pack.keys[1].public:
            said = pack.opened(line)
            lines[place] = make_statement(said, pack.stranger.sign, pack.stranger.public)
    pack.put("receipts.jsonl", lines)


def another_silos_statement(pack: Pack) -> None:
    lines = pack.lines("statements.jsonl")
    pack.put("statements.jsonl", [lines[0], lines[0], lines[2]])


def signed_as_another(pack: Pack) -> None:
    pack.restate(1, client=2)


def old_statement(pack: Pack) -> None:
    """The silo's own, of before the last round."""
    said = pack.opened(pack.lines("statements.jsonl")[0]).predicate
    receipts = [pack.opened(line) for line in pack.lines("receipts.jsonl")]
    last = [each for each in receipts if each.predicate["client"] == 0][-1]
    pack.restate(0, answered=said["answered"][:-1], chain=last.predicate["before"])


def another_trainings_statement(pack: Pack) -> None:
    pack.restate(0, training="another", terms="0" * 64)


def another_budget(pack: Pack) -> None:
    claims = pack.opened(pack.lines("statements.jsonl")[0]).predicate["claims"]
    pack.restate(0, claims=[{**claims[0], "epsilon": 8.0}, *claims[1:]])


def claims_below_their_events(pack: Pack) -> None:
    """Also if all silos have signed it: an accountant that was wrong, or changed."""
    claims = pack.opened(pack.lines("statements.jsonl")[0]).predicate["claims"]
    for silo in range(SILOS):
        pack.restate(silo, claims=[{**claims[0], "epsilon": 1.0}, *claims[1:]])


def swapped_rounds(pack: Pack) -> None:
    answered = pack.opened(pack.lines("statements.jsonl")[0]).predicate["answered"]
    pack.restate(0, answered=[answered[1], answered[0], *answered[2:]])


def another_broadcast(pack: Pack) -> None:
    """A silo that was sent another model than the others: a chain of its own."""
    from dpfed.training.wire.evidence import FIRST, RECEIPT, link

    said = pack.opened(pack.lines("statements.jsonl")[0]).predicate
    answered = [{**each, "model": "cd" * 32} for each in said["answered"]]
    before, made = FIRST, []
    for each in answered:
        body = {name: said[name] for name in ("training", "plan", "client")}
        body |= {name: each[name] for name in ("round", "attempt", "shared", "cohort")}
        body |= {"before": before}
        before = link(each["model"], body)
        receipt = Statement({"model": each["model"]}, RECEIPT, {**body, "reply": "00" * 32})
        made.append(make_statement(receipt, pack.keys[0].sign, pack.keys[0].public))
    others = [n for n in pack.lines("receipts.jsonl") if claimed_key(n) != pack.keys[0].public]
    pack.put("receipts.jsonl", [*made, *others])
    pack.restate(0, answered=answered, chain=before)


def told_of_another_model(pack: Pack) -> None:
    pack.restate(2, model="ef" * 32)


def another_cohort(pack: Pack) -> None:
    rounds = [json.loads(line) for line in pack.lines("rounds.jsonl")]
    rounds[1]["cohort"] = [0, 1]
    pack.put("rounds.jsonl", [canonical_json(each) for each in rounds])


def no_cohorts(pack: Pack) -> None:
    (pack.evidence / "rounds.jsonl").unlink()
    files = pack.read("index.json")["files"]
    pack.index(files={name: of for name, of in files.items() if name != "rounds.jsonl"})


def dropped_receipt(pack: Pack) -> None:
    pack.put("receipts.jsonl", pack.lines("receipts.jsonl")[:-1])


def forged_receipt(pack: Pack) -> None:
    lines = pack.lines("receipts.jsonl")
    tree = json.loads(lines[0])
    tree["signatures"][0]["sig"] = json.loads(lines[1])["signatures"][0]["sig"]
    pack.put("receipts.jsonl", [canonical_json(tree), *lines[1:]])


def receipt_twice(pack: Pack) -> None:
    pack.put("receipts.jsonl", [*pack.lines("receipts.jsonl"), pack.lines("receipts.jsonl")[0]])


def swapped_files(pack: Pack) -> None:
    statements, receipts = pack.lines("statements.jsonl"), pack.lines("receipts.jsonl")
    pack.put("statements.jsonl", receipts)
    pack.put("receipts.jsonl", statements)


def changed_file(pack: Pack) -> None:
    (pack.evidence / "history.jsonl").write_bytes(b"{}\n")


def stray_file(pack: Pack) -> None:
    (pack.evidence / "run_me.py").write_text("print()")


def linked_file(pack: Pack) -> None:
    content = pack.evidence / "terms.toml"
    content.rename(pack.out / "elsewhere.toml")
    content.symlink_to(pack.out / "elsewhere.toml")


def a_pipe(pack: Pack) -> None:
    (pack.evidence / "history.jsonl").unlink()
    os.mkfifo(pack.evidence / "history.jsonl")


def huge_file(pack: Pack) -> None:
    with (pack.evidence / "history.jsonl").open("ab") as file:
        file.truncate(1 << 28)  # sparse


def key_twice(pack: Pack) -> None:
    raw = (pack.evidence / "index.json").read_bytes()
    pack.write("index.json", raw.replace(b"{", b'{"version":1,', 1))


def key_twice_in_guarantee(pack: Pack) -> None:
    raw = (pack.evidence / "guarantee.json").read_bytes()
    pack.write("guarantee.json", raw.replace(b"{", b'{"epsilon":0.1,', 1))
    shutil.copy(pack.evidence / "guarantee.json", pack.out)


def no_terms(pack: Pack) -> None:
    (pack.evidence / "terms.toml").unlink()


def another_model_file(pack: Pack) -> None:
    path = pack.out / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def another_model_in_the_bundle(pack: Pack) -> None:
    path = pack.out / "model" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def another_guarantee_in_the_bundle(pack: Pack) -> None:
    path = pack.out / "model" / "model.json"
    told = json.loads(path.read_bytes())
    told["guarantee"]["epsilon"] /= 10
    path.write_text(json.dumps(told))


def another_contract_in_the_bundle(pack: Pack) -> None:
    path = pack.out / "model" / "model.json"
    told = json.loads(path.read_bytes())
    label = {"column": "ill", "words": ["no", "yes"]}
    columns = [{"name": "age", "kind": "number", "range": [0, 100]}]
    told["input"] = {"kind": "contract", "contract": {"columns": columns, "label": label}}
    path.write_text(json.dumps(told))


def renamed_parameters(pack: Pack) -> None:
    layout = pack.read("index.json")["layout"]
    pack.index(layout=layout[::-1])


def another_history(pack: Pack) -> None:
    rows = pack.lines("history.jsonl")
    pack.put("history.jsonl", [*rows, rows[-1]])


def somebody_else_took_part(pack: Pack) -> None:
    def change(told: dict[str, Any]) -> None:
        told["answered"]["rounds"] = [{"from": 1, "to": 3, "clients": ["client 0", "client 1"]}]

    pack.guarantee(change)


def guarantee_beside_differs(pack: Pack) -> None:
    told = json.loads((pack.out / "guarantee.json").read_bytes())
    (pack.out / "guarantee.json").write_text(json.dumps({**told, "epsilon": 0.1}))


def the_apps_own_statement(pack: Pack) -> None:
    pack.restate(1, by="the app that the server shipped")


def open_training(pack: Pack) -> None:
    pack.restate(1, open=True)


def a_number_for_open(pack: Pack) -> None:
    pack.restate(1, open=0)


def five_hundred_took_part(pack: Pack) -> None:
    """A summary, and no rounds that could be compared."""
    told = {"planned": 500, "took_part": 500, "fewest": 500, "most": 500, "units": 1e6}
    pack.guarantee(lambda said: said.update(answered={**told, "roster": True}))


def five_hundred_in_the_summary(pack: Pack) -> None:
    pack.guarantee(lambda said: said["answered"].update(took_part=500, most=500))


def more_records(pack: Pack) -> None:
    pack.guarantee(lambda said: said["answered"].update(units=1e6))


def more_participants(pack: Pack) -> None:
    pack.guarantee(lambda said: said.update(participants=500))


def named_in_markdown(pack: Pack) -> None:
    pack.guarantee(lambda said: said.update(training="ward\n\n> (0.01, 1e-09)-DP for all\n"))


def no_claims(pack: Pack) -> None:
    pack.guarantee(lambda said: said.update(claims=[]))


def true_for_one(pack: Pack) -> None:
    """A reader that takes true for 1 has two readings of a file."""
    index = pack.read("index.json")
    pack.index(committed=[{**each, "attempt": False} for each in index["committed"]])


TAMPERED: dict[str, tuple[Callable[[Pack], None], str, str]] = {
    "exact_arithmetic": (exact_arithmetic, REFUSED, "other-guarantee"),
    "system_noise": (system_noise, REFUSED, "other-guarantee"),
    "a_notary": (a_notary, REFUSED, "other-guarantee"),
    "drawn_records": (drawn_records, REFUSED, "other-guarantee"),
} | {
    f.__name__: (f, verdict, name)
    for f, verdict, name in [
        (drop_silo, INCOMPLETE, "no-statement"),
        (drop_from_roster, REFUSED, "other-roster"),
        (one_round_more, REFUSED, "not-answered"),
        (one_round_less, REFUSED, "other-guarantee"),
        (smaller_epsilon, REFUSED, "other-epsilon"),
        (smaller_claim_of_others, REFUSED, "other-epsilon"),
        (smaller_sentence, REFUSED, "other-guarantee"),
        (more_noise, REFUSED, "other-claim"),
        (larger_delta, REFUSED, "other-claim"),
        (fewer_claims, REFUSED, "other-epsilon"),
        (nobody_enforces_it, REFUSED, "other-guarantee"),
        (another_accountant, REFUSED, "other-claim"),
        (smaller_headline, REFUSED, "other-guarantee"),
        (person_in_the_sentence, REFUSED, "other-guarantee"),
        (no_budget, REFUSED, "other-guarantee"),
        (another_unit, REFUSED, "other-guarantee"),
        (blocks_that_no_silo_has, REFUSED, "other-guarantee"),
        (other_terms, REFUSED, "other-terms"),
        (foreign_key, REFUSED, "foreign-key"),
        (foreign_key_and_roster, REFUSED, "other-roster"),
        (another_silos_statement, REFUSED, "two-statements"),
        (signed_as_another, REFUSED, "another-silo"),
        (old_statement, REFUSED, "old-statement"),
        (another_trainings_statement, REFUSED, "disagree"),
        (another_budget, REFUSED, "disagree"),
        (claims_below_their_events, REFUSED, "other-epsilon"),
        (swapped_rounds, REFUSED, "broken-chain"),
        (another_broadcast, REFUSED, "two-broadcasts"),
        (told_of_another_model, REFUSED, "other-model"),
        (another_cohort, REFUSED, "other-cohort"),
        (no_cohorts, INCOMPLETE, "no-cohort"),
        (dropped_receipt, INCOMPLETE, "no-receipt"),
        (forged_receipt, REFUSED, "bad-receipt"),
        (receipt_twice, REFUSED, "two-receipts"),
        (swapped_files, REFUSED, "bad-statement"),
        (changed_file, REFUSED, "changed-file"),
        (stray_file, REFUSED, "stray-file"),
        (linked_file, REFUSED, "unfit-file"),
        (a_pipe, REFUSED, "unfit-file"),
        (huge_file, REFUSED, "unfit-file"),
        (key_twice, REFUSED, "malformed"),
        (key_twice_in_guarantee, REFUSED, "malformed"),
        (no_terms, INCOMPLETE, "no-file"),
        (another_model_file, REFUSED, "other-model"),
        (another_model_in_the_bundle, REFUSED, "other-model"),
        (another_guarantee_in_the_bundle, REFUSED, "other-bundle"),
        (another_contract_in_the_bundle, REFUSED, "other-bundle"),
        (renamed_parameters, REFUSED, "other-model"),
        (another_history, REFUSED, "other-history"),
        (somebody_else_took_part, REFUSED, "other-participants"),
        (guarantee_beside_differs, REFUSED, "other-guarantee"),
        (the_apps_own_statement, REFUSED, "other-guarantee"),
        (open_training, INCOMPLETE, "open-training"),
        (a_number_for_open, INCOMPLETE, "open-training"),
        (five_hundred_took_part, REFUSED, "other-participants"),
        (five_hundred_in_the_summary, REFUSED, "other-participants"),
        (more_records, REFUSED, "other-participants"),
        (more_participants, REFUSED, "other-participants"),
        (named_in_markdown, REFUSED, "other-training"),
        (no_claims, REFUSED, "other-guarantee"),
        (true_for_one, REFUSED, "malformed"),
    ]
}


def test_evidence_of_a_gated_training_is_complete(
    trained: Path, tmp_path: Path, other_check: ModuleType
) -> None:
    pack = Pack(trained, tmp_path)
    found = verify_evidence(pack.out, pack.roster)
    assert found.problems == ()
    assert (found.verdict, found.anchored) == (COMPLETE, True)
    assert "the training ended with" in found.file
    assert [silo.answered for silo in found.silos] == [3, 3, 3]
    assert found.claims[0][1] == pytest.approx(2.0)
    assert other_check.verdict(pack.out, pack.roster.read_bytes()) == (COMPLETE, "")
    done = CliRunner().invoke(app, ["verify", str(pack.out), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["verdict"] == COMPLETE


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_pack_is_named(
    name: str, trained: Path, tmp_path: Path, other_check: ModuleType
) -> None:
    change, verdict, problem = TAMPERED[name]
    pack = Pack(trained, tmp_path)
    change(pack)
    found = verify_evidence(pack.out, pack.roster)
    assert found.verdict == verdict, found.problems
    assert problem in {each.name for each in found.problems}, found.problems
    assert other_check.verdict(pack.out, pack.roster.read_bytes())[0] == verdict


def test_the_verdict_is_the_last_line_and_the_exit_code(trained: Path, tmp_path: Path) -> None:
    pack = Pack(trained, tmp_path)
    drop_silo(pack)
    done = CliRunner().invoke(app, ["verify", str(pack.out)])
    assert done.exit_code == 3
    assert done.output.splitlines()[-1] == "verdict   incomplete, if these are the silos' keys"
    smaller_sentence(pack)
    done = CliRunner().invoke(app, ["verify", str(pack.out), "--roster", str(pack.roster)])
    assert done.exit_code == 4
    assert done.output.splitlines()[-1] == "verdict   refused"


def test_no_folder_is_no_evidence(trained: Path, tmp_path: Path) -> None:
    shutil.copy(trained / "out" / "model.safetensors", tmp_path)  # a run that made no evidence
    found = verify_evidence(tmp_path)
    assert found.verdict == INCOMPLETE
    (tmp_path / "evidence").symlink_to("/")
    assert verify_evidence(tmp_path).verdict == REFUSED


def test_a_roster_that_the_verifier_wrote_wrongly_is_no_verdict(
    trained: Path, tmp_path: Path
) -> None:
    pack = Pack(trained, tmp_path)
    keys = [each["key"] for each in pack.read("roster.json")["clients"]]
    for odd in ({"clients": []}, {"version": 1, "clients": [{"name": "a", "key": "zz"}]}, []):
        pack.roster.write_text(json.dumps(odd))
        with pytest.raises(DataError, match=r"must be as docs/evidence\.md has it"):
            verify_evidence(pack.out, pack.roster)
    names = [f"silo-{n}" for n in range(SILOS)]
    clients = [{"name": name, "key": key} for name, key in zip(names, keys, strict=True)]
    pack.roster.write_text(json.dumps({"version": 1, "clients": clients}, indent=2))
    found = verify_evidence(pack.out, pack.roster)
    assert (found.verdict, found.anchored) == (COMPLETE, True), found.problems


@pytest.mark.sample(4)
@pytest.mark.parametrize("byte", [0, 0x22, 0x7B, 0xFF])
def test_any_byte_of_any_file_is_read_without_an_exception(
    byte: int, trained: Path, tmp_path: Path
) -> None:
    """A change of any signed or listed byte is never complete."""
    pack = Pack(trained, tmp_path)
    for path in sorted(pack.evidence.iterdir()):
        raw = path.read_bytes()
        for at in range(0, len(raw), max(1, len(raw) // 7)):
            if raw[at] == byte:
                continue
            path.write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
            assert verify_evidence(pack.out, pack.roster).verdict != COMPLETE, (path.name, at)
        path.write_bytes(raw)
    assert verify_evidence(pack.out, pack.roster).verdict == COMPLETE


def test_the_page_for_officers_is_written_from_verified_evidence_and_says_so(
    trained: Path, tmp_path: Path
) -> None:
    from dpfed.cli.explain import write_statement

    pack = Pack(trained, tmp_path)
    text = write_statement(pack.out, tmp_path / "page")[0].read_text()
    assert "Verified from evidence: all 3 silos have signed" in text
    assert "from evidence that it has verified" in text
    drop_silo(pack)
    text = write_statement(pack.out, tmp_path / "page")[0].read_text()
    assert "evidence beside it is incomplete (silo-2 has made no statement)" in text
    assert "Verified" not in text
    told_of_another_model(Pack(trained, tmp_path / "again"))
    with pytest.raises(RecipeError, match="other-model"):
        write_statement(tmp_path / "again" / "out", tmp_path / "page")


def test_a_verified_page_has_the_silos_words_and_a_section_for_those_of_others(
    trained: Path, tmp_path: Path
) -> None:
    """Before: it quoted recipe.toml, which nobody signs, and Markdown in any of the words."""
    from dpfed.cli.explain import write_statement

    pack = Pack(trained, tmp_path)
    (pack.out / "recipe.toml").write_text('name = "x"\n[privacy]\ncolluders = 9000\n')
    link = "![x](http://127.0.0.1/track) <b>\x1b[2J\u202e"
    pack.guarantee(lambda told: told.update(data=link, warnings=[link], evaluation=link))
    paths = write_statement(pack.out, tmp_path / "page")
    for text in (each.read_text() for each in paths):
        assert "9000" not in text
        assert not {"\x1b", "\u202e"} & set(text)
        assert "<b>" not in text
        signed, title, other = text.partition("Said by whoever ran it, and signed by no silo")
        assert title
        assert "Verified from evidence" in signed
        assert "track" not in signed
        assert "track" in other
    markdown = paths[0].read_text()
    assert "![x]" not in markdown
    assert "http://" not in markdown


@pytest.mark.slow
@pytest.mark.long
def test_where_a_draw_of_clients_is_secret_nothing_tells_who_took_part(tmp_path: Path) -> None:
    privacy = {
        "epsilon": 2.0,
        "noise": "keyed",
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "client_rate": 0.5,
    }
    allowed = {
        "unit": "client",
        "trust": ["central"],
        "against": "outsiders",
        "adjacency": "zero-out",
    }
    out = gated_training(
        tmp_path, data=allowed, privacy=privacy, method="dp-fedavg", sizes=[1.0] * SILOS
    )
    found = verify_evidence(out)
    assert (found.verdict, found.problems) == (COMPLETE, ())
    assert [silo.answered for silo in found.silos] == [None] * SILOS
    evidence = out / "evidence"
    assert not {"receipts.jsonl", "rounds.jsonl"} & {each.name for each in evidence.iterdir()}
    for line in (evidence / "statements.jsonl").read_bytes().splitlines():
        said = open_statement(line, claimed_key(line)).predicate
        assert not {"answered", "chain", "head"} & set(said)
    assert json.loads((evidence / "index.json").read_bytes())["committed"] == []


def test_a_bundle_reads_records_by_the_contract_that_silos_have_signed() -> None:
    columns = [{"name": "sex", "kind": "category", "words": ["f", "m"]}]
    plain = {"columns": columns, "label": {"column": "ill", "words": ["no", "yes"]}}
    agreed = contract_of(plain).digest
    told = {"guarantee": {}, "input": {"kind": "contract", "contract": plain}}
    assert description_problem(told, {}, agreed) == ""
    turned = {**plain, "label": {"column": "ill", "words": ["yes", "no"]}}
    for other in ({"kind": "contract", "contract": turned}, {"kind": "array"}):
        said = description_problem({**told, "input": other}, {}, agreed)
        assert "another contract" in said


def test_the_page_says_how_many_packs_were_tampered_with() -> None:
    page = (CHECK.parents[1] / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert f"{len(TAMPERED)} of which were tampered with" in page
