# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  sentences are quoted whole, as they stand on the page
"""Every sentence with a measured figure in README.md and docs, and what fills its gaps."""

from __future__ import annotations

from functools import partial

from tests.claims import (
    adamw,
    blocks,
    encoding,
    networks,
    private_statistics,
    quickstart_private,
)
from tests.claims import sofim_readings as readings
from tests.claims.devices import (
    SCALE,
    aggregator_ms,
    counted,
    fleet,
    flower_round,
    many_devices,
    noisy_rounds,
    nvflare_rounds,
    root_ms,
    secure_scale,
    secure_sums,
    soaked,
    tree_worth,
    users_lead,
    weight,
)
from tests.claims.dimension import cost
from tests.claims.files import Claim, best_lead, ends, furthest, mean, methods_of, spread
from tests.claims.other_methods import (
    above_each,
    against_lent,
    auto_headline,
    auto_ten,
    clip_small,
    hidden_all,
    it_diverged,
    persons,
    silos_go_both_ways,
    subjects,
)
from tests.claims.public_features import probes
from tests.claims.second_order import (
    fednew_behind,
    hybrid_errors,
    momentum_or_curvature,
    newton,
    on_adult,
    with_shares,
)
from tests.claims.sofim import (
    CENTRED,
    FEATURES,
    RAW,
    apart,
    at_rho_one,
    at_ten,
    averaging,
    central,
    centring,
    control,
    correlated,
    few_rounds,
    medical,
    not_reproduced,
    rate,
    raw_leads,
    round_costs,
    secure_sum,
    small_rho,
    soon,
    ten_times_too_small,
    weights,
    within,
    worse,
)

ENCODE = "docs/encode-first.md"
FLOWER = "docs/from-flower.md"
SOFIM = "docs/dp-fedsofim.md"


def leads_at_ten() -> tuple[float, ...]:
    """Leads over DP-FedGD at epsilon 10 on all four sets: DP-FedSOFIM, then EMA-only.

    The printed step leads in no cell by more than its own interval and Holm's correction.
    """
    assert readings.holm_counts(readings.FULL[1])[0] == 0
    return tuple(x for m in (readings.FULL[0], "EMA-only") for x in readings.leads_at("10", m))


def auto_in_short() -> tuple[float]:
    """DP-FedAuto in 10 untuned rounds less the best tuned; ahead on three sets, as the page says."""
    leads = auto_ten()
    assert [each > 0 for each in leads] == [True] * 3 + [False] * 3  # the last two are of text
    return auto_headline()[:1]


def untuned_in_short() -> tuple[float, float, float, int, int]:
    average, near, cells, least, most = readings.beside_the_better_in_short()
    return average, least, most, near, cells


def by_clip() -> tuple[float, ...]:
    clips = ("2", "5", "10", "15", "20", "40")
    return tuple(mean("sofim-clip", "DP-FedSOFIM", clip=clip) for clip in clips)


FEDNEW, NEWTON, ADAMW = "docs/dp-fednew.md", "docs/fednewton.md", "docs/dp-fedadamw.md"
ON_FASHION, ON_ADULT = "fednew-fashion-sum", "fednew-adult-sum"


def megabytes(method: str, *sizes: str) -> tuple[float, ...]:
    """The memory of a client at these numbers of parameters."""
    return tuple(cost(method, size, "memory") / 1e6 for size in sizes)


NETWORKS = "lab/studies/networks-untuned/results/README.md"
STATISTICS = "lab/studies/statistics/results/README.md"

CLAIMS = [
    Claim(NETWORKS, "it is {:.1f} and {:.1f} points ahead of a clip of 1", networks.normalised),
    Claim(
        NETWORKS,
        "clip at the 0.8 quantile**: {:+.1f}, {:+.1f}, {:+.1f}, {:+.1f}.",
        networks.at_a_quantile,
    ),
    Claim(
        NETWORKS,
        "it is {:.1f} points behind on LeNet, whose initial parameters are small, and {:.1f} ahead on MNIST",
        networks.by_the_start,
    ),
    Claim(
        NETWORKS,
        "took {:.0f}, {:.0f}, {:.0f}, {:.0f} and {:.0f} seconds on a shared machine under changing load, one training {:.0f} s or more",
        networks.search_seconds,
    ),
    Claim(
        "README.md",
        "untuned, it is {:+.1f}, {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points beside the best of three tuned methods on five unseen cells",
        networks.leads,
    ),
    Claim(
        "docs/models.md",
        "{:+.1f} and {:+.1f} points (activity, an MLP, epsilon 3 and 8), {:+.1f} and {:+.1f} points (pneumonia images, a CNN) and {:+.1f} points (CIFAR-10",
        networks.leads,
    ),
    Claim(
        "docs/models.md",
        "is {:.1f} to {:.1f} points behind it",
        networks.leads_over_gradient_descent,
    ),
    Claim(
        NETWORKS,
        "activity at epsilon 8, is at {:+.2f}, CIFAR-10 at {:+.1f}",
        lambda: [networks.row(cell)[-2] for cell in ("activity, MLP, 8", "CIFAR-10, ResNet, 8")],
    ),
    Claim(
        NETWORKS,
        "beside tuned momentum it is {:.1f} points behind on CIFAR-10",
        networks.behind_momentum,
    ),
    *(
        Claim(
            NETWORKS,
            f"| all records, {words} | {{:.1f}} | {{:.1f}} |",
            partial(networks.full_batch, adjacency, method),
        )
        for words, adjacency, method in (
            ("zero-out", "zero-out", "adam"),
            ("replace-one: the default there", "replace-one", "adam"),
            ("replace-one, DP-FedGD at rate 1, 70 rounds", "replace-one", "dp-fedgd"),
        )
    ),
    *(
        Claim(
            NETWORKS,
            f"| {cell} |" + 4 * " {:.1f} ± {:.1f} |" + " {} | {:+.1f} ± {:.1f} |",
            partial(networks.row, cell),
        )
        for cell in networks.CELLS
    ),
    Claim(
        "docs/models.md",
        "LeNet {:.2f} and {:.2f}, a small ResNet {:.2f} and {:.2f}, an MLP {:.2f} and {:.2f}, MiniLM with LoRA {:.2f} and {:.2f}.",
        networks.row_times,
    ),
    Claim(
        "docs/from-flower.md",
        "dpfed's two ways end {:.1f}, {:.1f} and {:.1f} points ahead",
        quickstart_private.leads,
    ),
    Claim("docs/blocks.md", "{} {} {} {} {}", blocks.arms),
    Claim(
        "docs/statistics.md",
        "each of {:.0f} intervals held the exact answer in {:.0f} or more; their median width was {:.2f} to {:.2f} times the least possible",
        private_statistics.in_short,
    ),
    *(
        Claim(
            STATISTICS,
            f"| {kind} | {{:.0f}} | {{:.0f}} to {{:.0f}} | {{:.2f}} to {{:.2f}} |",
            partial(private_statistics.kind, kind),
        )
        for kind in private_statistics.KINDS
    ),
    Claim(
        STATISTICS,
        "Two of its {:.0f} intervals miss, as one in twenty may: {:.0f} died at 60 or more, and the interval ends at {:.0f}; {:.0f} died with another tumour, and it begins at {:.0f}",
        private_statistics.missed,
    ),
    Claim(STATISTICS, "A count is off by at most {:.0f} in", private_statistics.half_of_a_count),
    Claim(
        STATISTICS, "That of the 10 % quantile is {:.2f} times as wide", private_statistics.widest
    ),
    Claim(STATISTICS, "up to {:.2f} times as wide as first-order", private_statistics.late_curve),
    # ------------------------------------------------------------------------------------ README.md
    Claim(
        ENCODE,
        "Credit default at ten silos, epsilon 1, untuned: AUC {:.3f} as the file has it, {:.3f} with ranges, {:.3f} with categories, {:.3f} with logarithms, too; with the secure sum {:.3f}, {:.3f}, {:.3f}, {:.3f}",
        lambda: tuple(
            each for trust in encoding.TRUSTS for each in encoding.aucs("credit default", trust)
        ),
    ),
    Claim(
        ENCODE,
        "breast cancer (1,096 records) under local noise has AUC {:.3f} with ranges, {:.3f} with categories, {:.3f} with logarithms; with the secure sum {:.3f}, {:.3f} and {:.3f}",
        lambda: tuple(
            each for trust in encoding.TRUSTS for each in encoding.aucs("breast cancer", trust)[1:]
        ),
    ),
    *(
        Claim(
            page,
            f"| {table} | {said} | {' | '.join(['{:.3f} / {:.3f}'] * 4)} |",
            partial(encoding.both, table, trust),
        )
        for page in (ENCODE, "lab/studies/encoding/results/README.md")
        for table in encoding.SETS
        for trust, said in encoding.TRUSTS.items()
    ),
    Claim(
        "README.md",
        "+{:.1f} points for DP-FedGD at epsilon 0.5 on CIFAR-10 features",
        lambda: secure_sum()[:1],
    ),
    Claim(
        "README.md",
        "Untuned, in 10 rounds, it beats the best of three tuned methods (70 rounds) by {:.1f} points on average over six unseen data sets: ahead on three, behind on one and on both text sets",
        auto_in_short,
    ),
    Claim(
        "README.md", "takes {:.2f} of FedAvg's time without noise, {:.1f} with noise", flower_round
    ),
    Claim("README.md", "has {} packages and {} MB, of which torch {}", weight),
    Claim("README.md", "{:,} kills, {} overspent, {} releases without an entry", soaked),
    Claim("README.md", "{} methods, those of the papers", counted),
    Claim(
        "README.md",
        "all first-order methods but DP-FTRL end within {:.1f} points with the sum over clients, and within {:.1f} with the average",
        within,
    ),
    Claim(
        "README.md",
        "it ends at {:.1f}, {:.1f}, {:.1f} and {:.1f} % on these features at epsilon 0.5, 1, 5 and 10",
        lambda: readings.untuned("CIFAR-10"),
    ),
    Claim(
        "README.md",
        "it is on average {:+.1f} points beside the better of momentum and DP-FedAdam",
        lambda: readings.beside_the_better_in_short()[:1],
    ),
    Claim(
        "README.md",
        "tuned, at epsilon 10, H M is {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points beside DP-FedGD on the four sets, plain momentum {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}",
        leads_at_ten,
    ),
    # ----------------------------------------------------------------------------------- docs/data.md
    Claim(
        "docs/data.md",
        "{:.1f} % with all 1,280 features, {:.1f} % with 64 along these directions, {:.1f} % with 64 random ones; at 128 pixels {:.1f}, {:.1f} and {:.1f} %. A PCA of the private features would give {:.1f} % with 64",
        probes,
    ),
    # --------------------------------------------------------------------------------- docs/choose.md
    Claim(
        "docs/choose.md",
        "{:+.1f} points on average beside the better of searched `ema-only` and `dp-fedadam`, {:+.1f} to {:+.1f} by cell",
        lambda: (
            readings.beside_the_better_in_short()[0],
            *readings.beside_the_better_in_short()[3:],
        ),
    ),
    Claim(
        "docs/choose.md",
        "| the trust model | +{:.1f} (secure sum), +{:.1f} (central) | +{:.1f} |",
        lambda: (secure_sum()[0], central("0.5"), central("5")),
    ),
    Claim(
        "docs/choose.md",
        "| the rate, against one ten times too small | +{:.1f} (at epsilon 1) | +{:.1f} |",
        lambda: (rate("1"), rate("5")),
    ),
    Claim(
        "docs/choose.md",
        "| how records are weighed | +{:.1f} | +{:.1f} |",
        lambda: (weights("0.5"), weights("5")),
    ),
    Claim(
        "docs/choose.md",
        "| features centred by a *public* mean | +{:.1f} | +{:.1f} |",
        lambda: (centring("0.5"), centring("5")),
    ),
    Claim(
        "docs/choose.md",
        "| the best of nine optimizers | +{:.1f} raw, +{:.1f} centred | +{:.1f} raw, +{:.1f} centred |",
        lambda: tuple(
            best_lead("sofim-wide", epsilon=e, **kind)
            for e in ("0.5", "5")
            for kind in (RAW, CENTRED)
        ),
    ),
    Claim(
        "docs/choose.md",
        "DP-FedAdam is significantly worse by more than 0.1 points once ({:.1f}, secure sum, epsilon 0.5). - EMA-only is so six times: by {:.1f}, {:.1f} and {:.1f} points at borrowed settings, and by {:.1f}, {:.1f} and {:.1f}. - At epsilon 5 and 10 on raw features the two are {:.1f} to {:.1f} points better. - At epsilon 10 on centred features, with grids of eight settings, they are {:.1f} points better on CIFAR-10 and {:.1f} to {:.1f} on Fashion-MNIST",
        lambda: (
            *worse(),
            *raw_leads("sofim-cifar10", "sofim-fashion"),
            at_ten("CIFAR-10")[0],
            *at_ten("Fashion-MNIST"),
        ),
    ),
    Claim(
        "docs/choose.md",
        "it beats the best of three tuned methods (70 rounds) by {:.1f} points on average over six data sets. It is ahead by {:.1f} points on activity, {:.1f} on pneumonia and {:.1f} on credit default. It is behind by {:.1f} on heart disease, and by {:.1f} and {:.1f} on text",
        lambda: (*auto_in_short(), *map(abs, auto_ten())),
    ),
    Claim(
        "docs/choose.md",
        "Against the same methods at settings lent by another data set it is ahead by {:.1f} on average",
        lambda: (against_lent(),),
    ),
    Claim(
        "docs/choose.md",
        "best at every epsilon on X-rays, {:.0f} to {:.0f} points above DP-FedGD, and on malaria cells, {:.0f} to {:.0f} points above",
        lambda: (*medical("X-rays"), *medical("malaria")),
    ),
    Claim(
        "docs/choose.md",
        "DP-FedAdam {:.1f} %, EMA-only {:.1f} %, DP-FedGD at rate 0.2 {:.1f} %. DP-FedGD at rate 0.3, which its coarse grid chose for round 70, has {:.1f} %",
        few_rounds,
    ),
    Claim(
        "docs/choose.md",
        "all significant: it loses {:.0f} points on heart disease at epsilon 5 and {:.0f} on whole patients at epsilon 1; it gains {:.0f} on whole subjects at epsilon 5 and {:.0f} to {:.0f} on X-ray sites. EMA-only loses {:.1f} points on 30 subjects at epsilon 5, significant",
        silos_go_both_ways,
    ),
    Claim(
        "docs/choose.md",
        "+{:.1f} points on raw features, +{:.1f} on centred ones, not significant",
        averaging,
    ),
    Claim(
        "docs/choose.md",
        "at epsilon 0.3, 1 and 10: momentum has {:.1f}, {:.1f} and {:.1f} %, DP-FedFC {:.1f}, {:.1f} and {:.1f} %",
        momentum_or_curvature,
    ),
    Claim(
        "docs/choose.md",
        "on MNIST at epsilon 8: +{:.1f} points (binary) and +{:.1f} (ten classes) over FedSGD, significant. With ten classes at epsilon 0.5 it is {:.0f} points behind",
        newton,
    ),
    Claim(
        "docs/choose.md",
        "{:.0f} points below DP-FedGD at epsilon 0.3 on Synthetic(5, 5)",
        lambda: fednew_behind()[:1],
    ),
    Claim(
        "docs/choose.md",
        "{:.0f} to {:.0f} points below DP-FedGD on CIFAR-10, {:.0f} to {:.0f} on Fashion-MNIST",
        lambda: (*correlated("sofim-cifar10"), *correlated("sofim-fashion")),
    ),
    Claim(
        "docs/choose.md",
        "In {} cells on CIFAR-10 and Fashion-MNIST features, at a searched rho, the two end at most {:.2f} points apart",
        lambda: (len(control("last", *FEATURES)), apart("last")),
    ),
    Claim(
        "docs/choose.md",
        "On two small medical sets they differ by up to {:.1f} points",
        lambda: (max(map(abs, control("last", "medical"))),),
    ),
    Claim(
        "docs/choose.md",
        "At rho 1 and the same rate it is {:.1f} to {:.1f} points below",
        at_rho_one,
    ),
    Claim(
        "docs/choose.md",
        "all first-order methods but DP-FTRL end within {:.1f} points of each other with the sum over clients, and within {:.1f} with the average",
        within,
    ),
    Claim(
        "docs/choose.md",
        "The paper reports leads of {:.1f} and {:.1f} points over DP-FedGD at epsilon 5 and 10",
        lambda: not_reproduced()[:2],
    ),
    Claim(
        "docs/choose.md",
        "On whole subjects at epsilon 5 it diverged in all five seeds",
        it_diverged,
    ),
    Claim(
        "docs/choose.md",
        "malaria at epsilon 5 falls from {:.1f} % (records; 200 patients, a silo each) to {:.1f} %",
        persons,
    ),
    Claim(
        "docs/choose.md",
        "fell from {:.0f} to {:.0f} % for DP-FedGD at epsilon 5, {:.0f} % at best",
        subjects,
    ),
    Claim("docs/choose.md", "at epsilon 5 DP-FedAdam needs {} for 95 % of DP-FedGD's end", soon),
    Claim(
        "docs/choose.md",
        "the mean hides up to {:.0f} points (hospitals), {:.0f} (patients), {:.0f} (X-ray sites)",
        lambda: (hidden_all()[0], hidden_all()[2], hidden_all()[1]),
    ),
    Claim(
        "docs/choose.md",
        "at lent settings, nine are {:.1f} points apart at epsilon 10",
        lambda: (spread("sofim-fashion", epsilon="10"),),
    ),
    Claim(
        SCALE,
        "An aggregator takes {:.1f} ms of CPU for a reply of 10^6 parameters, in memory that does not grow; the root {:.0f} ms for its total. So one core adds up {:,} replies in ten minutes, in which Flower's link serves {:,} to {:,} devices",
        lambda: (aggregator_ms()[-1], sum(root_ms()[:2]), *tree_worth("adding", "linked")),
    ),
    Claim(
        SCALE,
        "it would take {:.0f} aggregators of 250, {:.0f} to {:.0f} cores, all but one or two for Flower's link",
        lambda: tuple(many_devices("aggregators", "waiting_cores")),
    ),
    Claim(
        SCALE,
        "a core holds {} to {} that only wait. A round of 100 takes {:.0f} s, of 300 {:.0f} s",
        lambda: (*tree_worth("waiting"), *fleet("seconds_a_round", "stand-ins")[-2:]),
    ),
    Claim(
        SCALE,
        "SuperLink {:.1f} to {:.1f} s of CPU, the ServerApp {:.2f} s at most",
        lambda: tuple(
            each / 1e3
            for each in (*ends(fleet("superlink_ms_a_device")), max(fleet("serverapp_ms_a_device")))
        ),
    ),
    Claim(
        SCALE,
        "[{:.2f} s at 650, {:.2f} s at 10^6](../results/release/round.md): {:.1f} and {:.1f} times FedAvg's",
        noisy_rounds,
    ),
    Claim(
        SCALE,
        "one client | {:.1f} ms at 5, {:.1f} at 50, {:.1f} at 500",
        lambda: tuple(secure_scale("client_ms", 5, 50, 500)),
    ),
    Claim(
        "docs/nvflare.md",
        "takes {:.2f} s with 650 parameters and {:.1f} s with a million, where an empty task that carries as many bytes takes {:.2f} and {:.1f} s",
        nvflare_rounds,
    ),
    Claim(SCALE, "20 clients with the server: {:.0f} ms at 650, {:.2f} s at 10^6", secure_sums),
    Claim(
        SCALE,
        "the server | {:.1f} ms at 20, {:.0f} ms at 100, ",
        lambda: tuple(secure_scale("server_ms", 20, 100)),
    ),
    Claim(SCALE, "{:.2f} s at 500 |", lambda: (secure_scale("server_ms", 500)[0] / 1e3,)),
    Claim(
        SCALE,
        "secure: {:.1f} kB at 20, {:.1f} kB at 500 (d = 650)",
        lambda: tuple(each / 1e3 for each in secure_scale("sent_bytes", 20, 500)),
    ),
    # ---------------------------------------------------------------------------- docs/dp-fedsofim.md
    Claim(SOFIM, "at epsilon 1, it has {:.1f} and {:.1f} % at rho 0.01 and 0.1", small_rho),
    Claim(
        SOFIM,
        "in {} cells the printed step and DP-FedGD at eta / rho end at most {:.2f} points apart",
        lambda: (len(control("last", *FEATURES)), apart("last")),
    ),
    Claim(
        SOFIM,
        "it is {:+.1f} points on average beside the better of searched EMA-only and DP-FedAdam, {:+.1f} to {:+.1f} by cell, and within half a point or better in {} of {} cells",
        untuned_in_short,
    ),
    Claim(
        SOFIM,
        "it is {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} points beside DP-FedGD on CIFAR-10, Fashion-MNIST, X-rays and malaria, EMA-only {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f}, the printed step {:+.1f}, {:+.1f}, {:+.1f} and {:z.1f}",
        lambda: (*leads_at_ten(), *readings.leads_at("10", readings.FULL[1])),
    ),
    Claim(
        SOFIM,
        "| clip | 2 | 5 | 10 | 15 | 20 | 40 | |---|---:|---:|---:|---:|---:|---:| | accuracy (%) | {:.1f} | {:.1f} | **{:.1f}** | {:.1f} | {:.1f} | {:.1f} |",
        by_clip,
    ),
    Claim(SOFIM, "the step adds {:.1f} % to a round of DP-FedGD", lambda: round_costs()[:1]),
    # -------------------------------------------------------------------------- the papers' methods
    Claim(
        FEDNEW,
        "O(d^2): {:.0f} MB at 650 parameters, {:.0f} at 5,130",
        lambda: megabytes("DP-FedNew", "650", "5,130"),
    ),
    Claim(
        FEDNEW,
        "DP-FedNew-FC is {:+.1f}, {:+.1f} and {:+.1f} points at epsilon 0.1, 1 and 10 of the sum, DP-FedFC {:+.1f}, {:+.1f} and {:+.1f}. Momentum and DP-FedAdam, which the paper lacks, have that lead without a matrix: EMA-only {:+.1f}, {:+.1f} and {:+.1f}, DP-FedAdam {:+.1f}, {:+.1f} and {:+.1f}",
        lambda: tuple(
            x
            for m in ("DP-FedNew-FC", "DP-FedFC", "EMA-only", "DP-FedAdam")
            for x in with_shares(ON_FASHION, m)
        ),
    ),
    Claim(
        FEDNEW,
        "DP-FedNew is {:+.1f} points at epsilon 0.1 of the sum and {:+.1f} at 1, DP-FedAdam {:+.1f} and {:+.1f}; at 1 all six methods are within {:.1f} points",
        lambda: (
            *with_shares(ON_ADULT, "DP-FedNew"),
            *with_shares(ON_ADULT, "DP-FedAdam"),
            furthest(ON_ADULT, methods_of(ON_ADULT), epsilon="1"),
        ),
    ),
    Claim(
        FEDNEW,
        "{:.1f} and {:.1f} points below DP-FedAdam at epsilon 1 with 10 and 100 clients",
        lambda: tuple(
            -x for x in on_adult("DP-FedNew-FC", "DP-FedAdam", "1", folder="fednew-fashion")
        ),
    ),
    Claim(
        NEWTON,
        "O(d^2): {:.0f} MB at 650 parameters, {:.0f} at 2,570",
        lambda: megabytes("FedNewton", "650", "2,570"),
    ),
    Claim(
        NEWTON,
        "the lowest error in {} of {} cells, {:.2f} to {:.2f} of FedSGD's; FedNewton's is {:.2f} to {:.2f} of it",
        lambda: hybrid_errors()[:6],
    ),
    Claim(
        NEWTON,
        "+{:.1f} (binary) and +{:.1f} points (ten classes) over FedSGD, in two rounds in place of 40; with ten classes at epsilon 0.5 it is {:.0f} points behind",
        newton,
    ),
    Claim(
        ADAMW,
        "{:.1f}, {:.1f} and {:.1f} points below DP-LocalAdamW at noise multipliers 0.5, 1 and 2",
        adamw.below_local,
    ),
    Claim(
        ADAMW,
        "first of five adapters at epsilon 8, by {:.1f} points over DP-FedAdam",
        lambda: adamw.first_adapter()[:1],
    ),
    Claim(
        ADAMW,
        "untuned, is {:.1f} to {:.1f} points above every adapter",
        lambda: adamw.above_adapters("1", "8"),
    ),
    Claim(
        ADAMW, "what shares a moment moves accuracy by at most {:.1f} points", adamw.shared_moments
    ),
    # --------------------------------------------------------------------------------- other pages
    Claim(
        "docs/secure-sum.md",
        "gains {:.1f} points at epsilon 0.5 and {:.1f} at epsilon 1, where it is within {:.1f} of no privacy",
        lambda: (
            *secure_sum()[:2],
            mean("secure-sum", "DP-FedGD", epsilon="inf", trust="local")
            - mean("secure-sum", "DP-FedGD", epsilon="1", trust="distributed"),
        ),
    ),
    Claim(
        "docs/methods.md",
        "is on average {:.1f} points above DP-FedGD, {:.1f} above EMA-only and {:.1f} above DP-FedAdam",
        above_each,
    ),
    Claim("docs/threats.md", "costs {:.0f} to {:.0f} points", ten_times_too_small),
    Claim(
        FLOWER,
        "takes {:.1f} times FedAvg's with noise, ledger and replies on disk, {:.2f} without",
        lambda: flower_round()[::-1],
    ),
    Claim(FLOWER, "torch is required, {} of {} MB", lambda: weight()[:0:-1]),
    Claim(
        "docs/methods.md",
        "from one ten times too small it ends up to {:.1f} points below",
        lambda: (clip_small()[1],),
    ),
    Claim(
        SCALE,
        "these two are {:.1f} points ahead of independent noise at epsilon 2",
        lambda: (min(users_lead("2")),),
    ),
]
