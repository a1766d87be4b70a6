# SPDX-License-Identifier: Apache-2.0
"""One page that states what a run guarantees, for people who decide and did not run it.

It is made of what ``dpfed run --out`` wrote (guarantee.json, recipe.toml), and of a ledger if you
name its file: a recipe's ledger is not opened, since its folder may be a stranger's. Nothing is
trained. Each claim's epsilon is computed again from its own tree of
events, and a smaller claim is refused. The guarantee stands first, as one line with its assumptions
below; guarantee.json has it as one sentence. The page is written as Markdown, and as HTML that
loads nothing and runs no script.

Guarantee: no figure is smaller than its bound; a run without a guarantee says so first.

| edge case                               | what happens                                          |
|-----------------------------------------|-------------------------------------------------------|
| no guarantee.json                       | RecipeError: there is nothing to state                |
| no recipe.toml (a Flower app's folder)  | what only the recipe knows is left out                |
| fewer took part than the plan has       | said, with the roster's names, round by round; not    |
|                                         | where a draw of clients is secret                     |
| the recipe names a ledger               | said; the run's own figures stand alone               |
| the ledger was tampered with            | DataError: no total is stated                         |
| its sentence and claims disagree        | RecipeError: one of them was edited                   |
| evidence of the silos in the folder     | the page states what they have signed; what they have |
|                                         | not has a section of its own, and recipe.toml none    |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.accounting.attack_odds import FALSE_ALARM_RATE, Reading, of_100, read_odds
from dpfed.accounting.guarantee import GATED, Guarantee, round_up
from dpfed.accounting.stated import read_guarantee, recomputed
from dpfed.bundle.card import prose
from dpfed.core.dsse import strict_json
from dpfed.core.errors import DataError, RecipeError, Unpriceable
from dpfed.core.files import replace_file
from dpfed.core.log import shown
from dpfed.core.types import Adjacency, NoiseSource, Trust, Unit
from dpfed.recipes import schema as recipes
from dpfed.recipes.methods import markdown_table
from dpfed.recipes.result import EVIDENCE_FOLDER
from dpfed.recipes.schema import Recipe
from dpfed.recipes.verify import read_bounded

_MOST_BYTES, _MOST_TEXT = 1 << 24, 100_000


class TextTable(NamedTuple):
    """A head and rows of texts."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = str | list[str] | TextTable
"""A paragraph, a list, or a table."""


class Section(NamedTuple):
    """A part of the page."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class StatementMaterial:
    """All that a statement is made of."""

    name: str
    guarantee: Guarantee
    contents: dict[str, Any]
    """What guarantee.json says."""
    recipe: Recipe | None
    evidence: str = ""
    """What `dpfed verify` says of the folder's evidence, in a sentence; "" if there is none."""
    verified: bool = False
    """Whether the guarantee, and who took part, are what all silos have signed."""
    ledger: Path | None = None
    """A ledger's file to sum up; what a recipe names is not opened: it may be a stranger's."""

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return math.isfinite(self.guarantee.epsilon)


def gather_statement(folder: Path, ledger: Path | None = None) -> StatementMaterial:
    """What a run left in its folder."""
    path = folder / "guarantee.json"
    try:
        content = read_bounded(path, _MOST_BYTES)
        if content is None:
            raise RecipeError(
                f"{str(path)!r} cannot be read (there is none); give the folder that "
                f"'dpfed run --out FOLDER' wrote"
            )
        contents = strict_json(content, most_bytes=_MOST_BYTES)
        guarantee = read_guarantee(contents)
        for claim in guarantee.claims:
            recomputed(claim, guarantee.adjacency)
    except (DataError, Unpriceable) as error:
        said = str(error).partition(";")[0]
        raise RecipeError(
            f"{str(path)!r} is not a guarantee that dpfed wrote ({said}); ask for the file as "
            f"dpfed wrote it"
        ) from error
    material = StatementMaterial(
        name=str(contents.get("training") or folder.resolve().name),
        guarantee=guarantee,
        contents=contents,
        recipe=None,
        ledger=ledger,
    )
    if (folder / EVIDENCE_FOLDER).exists():  # then recipe.toml says nothing: nobody signed it
        return _with_evidence(material, folder)
    try:
        content = read_bounded(folder / "recipe.toml", _MOST_BYTES)
    except DataError as error:
        raise RecipeError(str(error)) from error
    tables = None if content is None else recipes.toml_tables(content, folder / "recipe.toml")
    recipe = None if tables is None else recipes.load_recipe(tables)
    name = contents.get("training") or (recipe.name if recipe else folder.resolve().name)
    return replace(material, recipe=recipe, name=str(name))


def _with_evidence(material: StatementMaterial, folder: Path) -> StatementMaterial:
    """What the silos have signed; refuses a folder whose evidence contradicts itself."""
    from dpfed.recipes.verify import COMPLETE, REFUSED, verify_evidence

    found = verify_evidence(folder)
    if found.verdict == REFUSED:
        wrong = next(each for each in found.problems if not each.missing)
        raise RecipeError(
            f"the evidence in {str(folder)!r} contradicts what the silos have signed "
            f"({wrong.name}: {wrong.said}); run 'dpfed verify', and ask for the folder again"
        )
    if found.verdict != COMPLETE or found.guarantee is None:
        said = (
            f"The evidence beside it is incomplete ({found.problems[0].said}), so these figures "
            f"are those of whoever ran the training."
        )
        return replace(material, evidence=said)
    return replace(
        material,
        name=found.training,
        guarantee=found.guarantee,
        contents={**material.contents, "answered": found.answered},
        verified=True,
        evidence=(
            f"Verified from evidence: all {len(found.silos)} silos have signed the terms, the "
            f"rounds that they answered and these claims, under the keys of the folder's roster, "
            f"to be compared with the silos' own (dpfed silo status). The model that they were "
            f"told of is {found.model[:16]}; {found.file}."
        ),
    )


def sections(material: StatementMaterial) -> list[Section]:
    """The page, in order."""
    if not material.private:
        return [_nothing(material), *_about(material)]
    return [
        _protected(material),
        _against(material),
        _meaning(material),
        _rests_on(material),
        *_who_took_part(material),
        _all_runs(material),
        _not_covered(material),
        *_about(material),
    ]


# --------------------------------------------------------------------------- what, and against whom

UNITS = {
    Unit.RECORD: "one record",
    Unit.GROUP: "one person, with all of their records at one participant",
    Unit.CLIENT: "one participant, with all of its records",
}
INSIDE_BLOCKS = (
    "The data arrives in blocks, by month or year, of which {many} were used. Both are in the same "
    "block: in which one {unit} is, is not protected, and no figure holds for all of the data."
)
NEIGHBOURS = {
    Adjacency.REPLACE_ONE: "{unit} in the place of any other",
    Adjacency.ADD_REMOVE: "{unit} more or less",
    Adjacency.ZERO_OUT: "{unit} there or blanked out",
}


def _nothing(material: StatementMaterial) -> Section:
    return Section(
        "No privacy is guaranteed",
        (
            f"{material.guarantee.sentence} Nothing bounds what can be learned about a record from "
            "this run or its model. Treat both as you treat the records themselves.",
        ),
    )


def _protected(material: StatementMaterial) -> Section:
    found = material.guarantee
    unit = UNITS[found.unit]
    differ = NEIGHBOURS[found.adjacency].format(unit=unit)
    return Section(
        "What is protected",
        (
            f"The presence and content of {unit}. The guarantee compares two collections of data "
            f"that differ in {differ} ({found.adjacency}): whatever is seen of the training is "
            "almost as likely under the one as under the other, whatever all other records are and "
            "whatever the reader knows.",
            *([INSIDE_BLOCKS.format(many=len(found.blocks), unit=unit)] if found.blocks else []),
        ),
    )


def _against(material: StatementMaterial) -> Section:
    found = material.guarantee
    rows = []
    for claim in found.claims:
        reading = read_odds(claim, found.trust)
        rows.append(
            (
                claim.adversary[:1].upper() + claim.adversary[1:],
                round_up(claim.epsilon),
                round_up(claim.delta),
                f"at most {of_100(reading.right)}",
                f"at most {of_100(reading.found)}",
            )
        )
    head = (
        "against",
        "epsilon",
        "delta",
        "right guesses of 100 (chance: 50)",
        f"found of 100, at {FALSE_ALARM_RATE:.0%} false alarms "
        f"(chance: {100 * FALSE_ALARM_RATE:g})",
    )
    return Section("Against whom, and how strongly", (TextTable(head, tuple(rows)),))


def _meaning(material: StatementMaterial) -> Section:
    found = material.guarantee
    strongest = max(found.claims, key=lambda claim: claim.epsilon)
    return Section(
        "What epsilon means here",
        (
            game(read_odds(strongest, found.trust), found.adjacency, UNITS[found.unit]),
            f"This holds for every attack, also future ones, with any side knowledge and any "
            f"computing power that does not break {_ciphers(found.trust)}. Figures are rounded up. "
            f"Epsilon {round_up(strongest.epsilon)} itself says: whatever is seen is at most "
            f"{_factor(strongest.epsilon)} times as likely under the one collection as under the "
            f"other, plus a chance of {round_up(strongest.delta)} (delta). What is true of the "
            f"population, and would be learned without {UNITS[found.unit]} as well, is not hidden: "
            f"that is what training is for.",
        ),
    )


def game(reading: Reading, adjacency: Adjacency, unit: str) -> str:
    """The attacker's best result, in words.

    Args:
        reading: how often the attacker can be right.
        adjacency: what the two data sets differ in, which the attacker guesses.
        unit: the unit in words, e.g. one record.
    """
    which = {
        Adjacency.REPLACE_ONE: f"which of two candidates for {unit} was in the data",
        Adjacency.ADD_REMOVE: f"whether {unit} was in the data",
        Adjacency.ZERO_OUT: f"whether {unit} was in the data or blanked out",
    }[adjacency]
    return (
        f"Toss a fair coin and let an attacker, who knows all other records and sees all that is "
        f"listed above, guess {which}. On average at most {of_100(reading.right)} of 100 "
        f"such guesses are right, where 50 is chance. An attacker who may wrongly accuse only 1 of "
        f"100 finds at most {of_100(reading.found)} of 100, where 1 is chance."
    )


def _ciphers(trust: Trust) -> str:
    noise = "ChaCha20, the 256-bit stream cipher that noise is made with"
    hidden = ", or the secure sum's cryptography" * (trust is Trust.DISTRIBUTED)
    return noise + hidden


def _factor(epsilon: float) -> str:
    return "e^" + round_up(epsilon) if epsilon > 50 else round_up(math.exp(epsilon) * (1 + 1e-8), 3)


# ------------------------------------------------------------------------------- what it rests on


def _rests_on(material: StatementMaterial) -> Section:
    found = material.guarantee
    lines = [*_trust(material), f"Accounting: {found.claims[0].accounting}; {found.rounds} rounds."]
    if found.draws:
        hidden = " Whoever learns a draw is not covered." if "probability" in found.draws else ""
        lines.append(f"{'Draws' if hidden else 'Turns'}: {found.draws}.{hidden}")
    if found.noise is NoiseSource.KEYED:
        lines.append(
            "Noise: keyed by a seed, so that the run can be repeated. Whoever knows the seed can "
            "take the noise off: for research only, never for people's data."
        )
    else:
        source = "a ChaCha20 stream, its key from the operating system"
        lines.append(f"Noise: {source}; {_kept(material)}")
    if found.idealized:
        lines.append("Arithmetic: idealized; noise is a floating-point number (see below).")
    else:
        lines.append("Arithmetic: sums and noise are exact integers; no rounding is left out.")
    lines.append("Each participant runs this software unmodified, and clips and adds noise itself.")
    if found.trust is Trust.CENTRAL:
        lines[-1] = "Each participant runs this software unmodified, and clips its own records."
    if found.enforced == GATED:
        lines.append(
            "That a process of its owner's, a gate, held each participant's data is the word of "
            "its node when it enrolled, and was so in every round; the gate's own log has it."
        )
    return Section("What it rests on", (lines,))


def _kept(material: StatementMaterial) -> str:
    """Whether noise is stored, and by whom: correlated noise depends on that of earlier rounds."""
    found = material.guarantee
    if not found.correlated:
        return "both are new for each release, and neither is kept."
    keeper = "the server" if found.trust is Trust.CENTRAL else "each participant"
    return (
        f"part of it is kept by {keeper} for later rounds, since it is correlated: whoever reads "
        f"it there can take it off."
    )


_COUNTED = (
    "and the server is not trusted to ask no more often: each participant counts its messages and "
    "refuses more than the plan has, as dpfed's ClientApp does"
)


def _trust(material: StatementMaterial) -> Iterable[str]:
    found = material.guarantee
    if found.trust is Trust.CENTRAL:
        yield "Trust: the server sees clipped sums in clear and adds the noise: it must be honest."
        return
    if found.trust is Trust.LOCAL:
        yield f"Trust: each participant's message is private on its own, {_COUNTED}."
    else:
        yield (
            f"Trust: the server can open only sums with at least {found.shares:g} honest shares of "
            f"noise, by a secure sum (X25519, ChaCha20, AES-GCM); messages before that are not "
            f"private on their own. It opens one sum a round, {_COUNTED}."
        )
    if found.budgeted:
        yield "A budget that the data's owner declared in the ledger bounds all trainings on it."
    else:
        yield (
            "Further, that the server starts no other training on the data is taken on trust: a "
            "budget that the data's owner declares in the ledger would bound all of them."
        )
    yield from _pooling(material)


def _pooling(material: StatementMaterial) -> Iterable[str]:
    found = material.guarantee
    colluders = found.colluders
    if found.trust is Trust.DISTRIBUTED:
        yield f"At most {_clients(colluders)} may side with the server."
    elif len(found.claims) > 1:
        pooled = f"while at most {_clients(colluders)} pool what they know"
        held = "against each participant alone" if colluders == 1 else pooled
        yield f"The smaller figure counts on the noise of others: it holds {held}."


def _clients(count: int) -> str:
    return f"{count} participant{'' if count == 1 else 's'}"


# --------------------------------------------------------------------------------- who took part

MAX_TABLE_ROWS = 40
"""Participants, or runs of rounds, beyond which a page has numbers and no table."""


def _who_took_part(material: StatementMaterial) -> list[Section]:
    """Who is in the rounds' totals; only the plan's numbers if the client draw is secret."""
    found = material.contents.get("answered")
    if not isinstance(found, dict) or not found:  # an open population
        return []
    if "expected" in found:
        said = (
            f"Participants are drawn for each round, {float(found['expected']):g} of "
            f"{found['planned']} are expected in it, and nobody but the server knows who was. The "
            f"figures count on that, so nobody is named here, nor how many answered."
        )
        return [Section("Who took part", (said,))]
    blocks: list[Block] = [_took_part(found, material.guarantee)]
    told, rounds = found.get("rounds_of", {}), found.get("rounds", [])
    if len(told) <= MAX_TABLE_ROWS and told:
        head = ("participant", f"rounds answered, of {material.guarantee.rounds}")
        blocks.append(TextTable(head, tuple((str(n), str(k)) for n, k in told.items())))
    if 1 < len(rounds) <= MAX_TABLE_ROWS:
        blocks.append([_in_rounds(each, int(found["planned"])) for each in rounds])
    named = "Names are the roster's, by" if found.get("roster") else "They are called by"
    blocks.append(
        f"As the server counted them: a round's total has a participant's answer or has it not. "
        f"{named} the number under which a participant's node enrolled."
    )
    return [Section("Who took part", tuple(blocks))]


def _took_part(found: Mapping[str, Any], guarantee: Guarantee) -> str:
    planned, took, fewest = (int(found[key]) for key in ("planned", "took_part", "fewest"))
    if took == planned and fewest == planned:
        return f"All {planned} participants answered in every round."
    units = ""
    if guarantee.unit is not Unit.CLIENT and "units" in found:  # signed: see verify
        units = f", with {float(found['units']):,.0f} {PLURAL[guarantee.unit]}"
    if took == 1:
        return (
            f"One participant of {planned} took part{units}: the model is made of its data alone."
        )
    often = f"between {fewest} and {found['most']} of them answered in a round"
    often = f"{fewest} of them answered in each round" if fewest == found["most"] else often
    return f"{took} of {planned} participants took part{units}; {often}."


def _in_rounds(each: Mapping[str, Any], planned: int) -> str:
    first, last, who = each["from"], each["to"], each["clients"]
    when = f"Round {first}" if first == last else f"Rounds {first} to {last}"
    everyone = len(who) == planned
    return f"{when}: {'all' if everyone else ', '.join(map(str, who)) or 'nobody'}."


# ------------------------------------------------------------------------------------- all runs


def _all_runs(material: StatementMaterial) -> Section:
    title = "All runs on the same data"
    path, enforced = material.ledger, material.guarantee.enforced
    if path is None and enforced == GATED:
        return Section(
            title,
            (
                "The figures above are for this run alone. Each participant's own process entered "
                "its releases in its own ledger before they left, under a budget that the data's "
                "owner declared for all runs. This folder does not have these ledgers: each "
                "participant knows its own data's total (dpfed ledger show).",
            ),
        )
    if path is None and (enforced or material.recipe is None):  # no run of one process
        return Section(
            title,
            (
                "The figures above are for this run alone. Whether participants keep a ledger, "
                "this folder does not say: each of them knows its own data's total "
                "(dpfed ledger show).",
            ),
        )
    if path is None and material.recipe is not None and material.recipe.ledger is not None:
        return Section(
            title,
            (
                "The figures above are for this run alone. Its recipe names a ledger, which is "
                "opened only if you name its file: dpfed explain FOLDER --ledger FILE.",
            ),
        )
    if path is None:
        return Section(
            title,
            (
                "This run kept no ledger, so the figures above are for this run alone. Every "
                "further run on the same records adds to them; a [ledger] in the recipe "
                "keeps the total.",
            ),
        )
    rows = totals(path, material.guarantee.delta)
    if not rows:
        return Section(title, (f"The ledger {path} has no entry yet.",))
    if _lacks(rows, material.guarantee):
        said = f"The ledger {path.name} does not have this run: its totals are below the run's own."
        return Section(title, (f"{said} Ask whoever keeps the run's ledger for the total.",))
    head = ("data set", "guarantee", "runs", "epsilon so far", "delta", "budget")
    return Section(
        title,
        (
            f"The ledger {path.name} was verified row by row. Where participants divide a data "
            "set, the line is the most exposed one's.",
            TextTable(head, tuple(rows)),
            "What is spent and what is left do not add up to the budget: squares of mu add up, and "
            "epsilon does not.",
        ),
    )


def _lacks(rows: list[tuple[str, ...]], own: Guarantee) -> bool:
    """Whether the ledger cannot have this run: each total is below it, at no larger a delta."""
    epsilon, delta = float(round_up(own.epsilon)), float(round_up(own.delta))
    bounded = [row for row in rows if row[3] != "no bound"]
    lower = all(float(row[3]) < epsilon and float(row[4]) <= delta for row in bounded)
    return lower and len(bounded) == len(rows)


def totals(path: Path, delta: float) -> list[tuple[str, ...]]:
    """Per data set: what its budget is stated for, the number of runs, and their epsilon.

    Without a budget there is a row for each guarantee that was given; all releases count in each.

    Args:
        path: the ledger's file; one that was tampered with is refused.
        delta: at which epsilon is stated if no budget states a delta.
    """
    from dpfed.accounting.ledger.ledger import Ledger

    ledger = Ledger(path, create=False)
    ledger.rows()  # refuses a file that was tampered with
    rows: list[tuple[str, ...]] = []
    for total in ledger.balance().totals(delta):
        kind = f"{total.key.unit}, {total.key.adjacency}, against {total.key.against}"
        most = f"{total.budget.epsilon:g}" if total.budget else "none declared"
        spent = "no bound" if total.unbounded else round_up(total.epsilon)
        rows.append((total.key.base, kind, str(total.runs), spent, round_up(total.delta), most))
    return rows


# ---------------------------------------------------------------------- what is not covered, facts


def _not_covered(material: StatementMaterial) -> Section:
    found = material.guarantee
    lines = [
        "Tuning: trying several settings on the same records, and choosing by the result, "
        "costs more than one run. The figures are for this run as configured.",
    ]
    if found.idealized:
        lines.append(
            "Arithmetic: the lowest bits of floating-point noise are not covered by the proof; "
            "mechanism = 'discrete_gaussian' covers them."
        )
    if found.unit is not Unit.CLIENT:
        lines.append(
            "One person at several participants: each participant's records count on their own."
        )
        lines.append("How many records a participant has, and that it takes part, is public.")
    if found.unit is Unit.RECORD:
        lines.append(
            "A person with k records: epsilon is up to k times as large, and delta more than that."
        )
    lines.append("What else leaves a participant (logs, statistics, other software) is not seen.")
    return Section("What is not covered", (lines,))


def _evaluation(material: StatementMaterial) -> str:
    words = str(material.contents.get("evaluation", "in a way that was not noted"))
    kind = "" if material.recipe is None else material.recipe.evaluation.kind
    if kind == "federated":
        return f"Accuracy was measured {words}: it is inside the budget."
    if "test records" in words:
        return (
            f"Accuracy was measured {words}: this guarantee does not protect those records; "
            "they must be public or the server's own."
        )
    if words == "not measured":
        return "Accuracy was not measured."
    return f"Evaluation, {words}."


def _about(material: StatementMaterial) -> list[Section]:
    from dpfed._version import VERSION

    recipe, contents = material.recipe, material.contents
    lines = [f"Data: {contents.get('data', 'not noted')}.", _evaluation(material)]
    if recipe:
        steps = " then ".join(str(each.get("name")) for each in recipe.server)
        ran = recipe.method or f"{recipe.client.get('name')} at the clients, {steps} at the server"
        lines.append(f"Method: {ran}; {material.guarantee.rounds} rounds; seed {recipe.seed}.")
    lines += run_figures(contents, material.guarantee)
    lines += [f"Warning: {_sentence(str(each))}" for each in contents.get("warnings", ())]
    if contents.get("stopped"):
        lines.append(f"It was stopped early: {_sentence(str(contents['stopped']))}")
    files = "guarantee.json" if recipe is None else "guarantee.json and recipe.toml"
    stated = f"Stated by dpfed {VERSION} from {files} of the run, {AS_WRITTEN}"
    if material.verified:
        stated = f"Stated by dpfed {VERSION} from evidence that it has verified (dpfed verify)."
        return [
            Section("Evidence", ([material.evidence, stated],)),
            Section("Said by whoever ran it, and signed by no silo", (lines,)),
        ]
    evidence = [material.evidence] if material.evidence else []
    return [Section("The run", ([*lines, *evidence, stated],))]


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


# -------------------------------------------------------------------------------- the run's figures

AS_WRITTEN = (
    "as whoever ran it wrote them: only that no epsilon is below the cost of the events beside "
    "it was computed again. What a participant itself "
)
AS_WRITTEN += "released is in its own ledger (dpfed ledger show, verify) and its gate's log."
PLURAL = {Unit.RECORD: "records", Unit.GROUP: "persons", Unit.CLIENT: "participants"}


def run_figures(contents: Mapping[str, Any], found: Guarantee) -> Iterator[str]:
    """Accuracy, participants, rounds and dates."""
    if contents.get("accuracy") is not None:
        yield f"Accuracy: {100 * float(contents['accuracy']):.1f} % at the end."
    if contents.get("participants"):
        units = f"{float(contents.get('units') or 0):,.0f} {PLURAL[found.unit]}"
        private = found.adjacency is Adjacency.ADD_REMOVE
        known = "a nominal number, since the true one is private" if private else "a public number"
        planned, told = int(contents["participants"]), contents.get("answered")
        took = told.get("took_part", planned) if isinstance(told, Mapping) else planned
        few = "" if took == planned else f"{took} took part, of "
        counted = "" if found.unit is Unit.CLIENT else f", with {units} in all ({known})"
        yield f"Participants: {few}{planned}{counted}."
    if contents.get("rounds_asked"):
        wasted = contents.get("wasted_attempts") or 0
        lost = f"{wasted} attempts brought no total and were paid for" if wasted else "none wasted"
        yield f"Rounds: {found.rounds} played of {contents['rounds_asked']} asked for; {lost}."
    for word, key in (("Began", "started"), ("Ended", "finished")):
        if contents.get(key):
            yield f"{word}: {str(contents[key]).replace('T', ' ')[:16]} UTC."


# --------------------------------------------------------------------- the files: HTML and Markdown


def html(material: StatementMaterial) -> str:
    """The whole page."""
    title = f"Privacy statement: {material.name}"
    body = "".join(map(_section, sections(material)))
    found = material.guarantee
    quoted = f"<blockquote>{_html(found.summary)}</blockquote>{_block(found.assumptions)}"
    style = style_of("dpfed.cli", "statement.css")
    return html_page(title, f"<h1>{_html(title)}</h1>\n{quoted}\n{body}", style)


def _section(section: Section) -> str:
    blocks = "".join(map(_block, section.blocks))
    return f"<section><h2>{_html(section.title)}</h2>{blocks}</section>\n"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{_html(block)}</p>"
    if isinstance(block, TextTable):
        return _table(block)
    return f"<ul>{''.join(f'<li>{_html(each)}</li>' for each in block)}</ul>"


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(f"<tr>{_cells(table.head, row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(head: tuple[str, ...], row: tuple[str, ...]) -> str:
    pairs = zip(head, row, strict=True)
    return "".join(
        f'<td{_short(text)} data-label="{escape(name)}"><span>{_html(text)}</span></td>'
        for name, text in pairs
    )


def _html(text: str) -> str:
    return escape(shown(text, _MOST_TEXT))


def _short(text: str) -> str:
    """The class of short texts, such as figures, which must not wrap."""
    return ' class="short"' if len(text) < 16 else ""


# -------------------------------------------------------------------------------------- Markdown


def markdown(material: StatementMaterial) -> str:
    """The page as Markdown, in which no word of anybody's is more than a word."""
    found = material.guarantee
    lines = [f"# Privacy statement: {_plain(material.name)}", "", f"> {_plain(found.summary)}", ""]
    lines += [*(f"- {_plain(each)}" for each in found.assumptions), ""]
    for section in sections(material):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_markdown_block(block), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return prose(text, _MOST_TEXT)


def _markdown_block(block: Block) -> list[str]:
    if isinstance(block, str):
        return [_plain(block)]
    if isinstance(block, TextTable):
        return markdown_table(block.head, [tuple(map(_plain, row)) for row in block.rows])
    return [f"- {_plain(each)}" for each in block]


def write_statement(folder: Path, out: Path, ledger: Path | None = None) -> tuple[Path, Path]:
    """Write statement.md and statement.html; returns their paths.

    Args:
        folder: the run's, with guarantee.json and, if there is one, recipe.toml.
        out: the folder for both files; made if missing.
        ledger: a ledger's file to sum up; without it, no ledger is opened.
    """
    material = gather_statement(folder, ledger)
    out.mkdir(parents=True, exist_ok=True)
    text, page = out / "statement.md", out / "statement.html"
    # a stranger's folder may have links in the places of both
    replace_file(text, markdown(material).encode(), 0o644)
    replace_file(page, html(material).encode(), 0o644)
    return text, page


# -------------------------------------------------------------------------------- any page


def html_page(title: str, body: str, style: str) -> str:
    """One HTML page without other files: it has no script and loads nothing.

    Args:
        title: what the browser shows; a text, not HTML.
        body: the HTML inside of ``<body>``.
        style: what the page adds to the common style.
    """
    common = style_of("dpfed.cli", "page.css")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{common}{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def style_of(package: str, name: str) -> str:
    """A style sheet that comes with a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
