"""The whole federation on this machine: two owners' gates, made-up records, Flower's simulation."""

import getpass
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
SILOS, RECORDS, FEATURES = 2, 1500, 8
DPFED = [sys.executable, "-m", "dpfed.cli.main"]

POLICY = Template("""
[gate]
socket = "$folder/gate.sock"
state = "$folder/state"
relay_users = ["$user"]

[data.made-up]
client = $silo
load = {source = "$folder/records.csv", options = {y = "label"} }
shape = [$features]
classes = 2
epsilon = 4.0                # of all trainings together
methods = ["dp-fedauto"]
""")


def write_records(path: Path, silo: int) -> None:
    """Made-up records: the label is the side of a plane, with some noise."""
    draw = random.Random(silo)
    lines = [",".join([*(f"x{k}" for k in range(FEATURES)), "label"])]
    for _ in range(RECORDS):
        x = [draw.gauss(0, 0.5) for _ in range(FEATURES)]
        side = sum(x[: FEATURES // 2]) - sum(x[FEATURES // 2 :]) + draw.gauss(0, 0.3)
        lines.append(",".join([*(f"{value:.4f}" for value in x), str(int(side > 0))]))
    path.write_text("\n".join(lines) + "\n")


def open_gate(folder: Path, silo: int, terms: Path) -> subprocess.Popen:
    """What an owner does: a policy, an approval, and a process that holds the door."""
    folder.mkdir(mode=0o700)
    write_records(folder / "records.csv", silo)
    policy = folder / "silo.toml"
    words = {"folder": folder, "user": getpass.getuser(), "silo": silo, "features": FEATURES}
    policy.write_text(POLICY.substitute(words))
    approve = [*DPFED, "silo", "approve", str(terms), "--policy", str(policy), "--yes"]
    subprocess.run(approve, check=True)
    serve = [*DPFED, "silo", "serve", "--policy", str(policy)]
    gate = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    print(gate.stdout.readline())
    return gate


def main() -> None:
    """Terms, two gates, a training, and what the owners see afterwards."""
    for old in ("out", "checkpoint"):  # of an earlier rehearsal
        shutil.rmtree(HERE / old, ignore_errors=True)
    place, gates = Path(tempfile.mkdtemp(prefix="dpfed-")), []
    terms = place / "terms.toml"
    sizes = ",".join([str(RECORDS)] * SILOS)
    words = f"--dataset made-up --shape {FEATURES} --classes 2 --sizes {sizes}".split()
    made = subprocess.run(
        [*DPFED, "silo", "terms", str(HERE / "recipe.toml"), *words],
        check=True, capture_output=True, text=True,
    )
    terms.write_text(made.stdout)
    try:
        for silo in range(SILOS):
            gates.append(open_gate(place / str(silo), silo, terms))
        config = f'terms="{terms}" out="{HERE}/out" checkpoint="{HERE}/checkpoint" '
        config += f'gate="{place}/' + '{partition-id}/gate.sock"'
        train = ["flwr", "run", ".", "--stream", "--run-config", config]
        if subprocess.run(train, cwd=HERE, check=False).returncode:
            sys.exit("nothing was trained: see above. A SuperLink that was too slow: try again.")
        for silo in range(SILOS):
            policy = str(place / str(silo) / "silo.toml")
            subprocess.run([*DPFED, "silo", "status", "--policy", policy], check=True)
    finally:
        for gate in gates:
            gate.terminate()
        shutil.rmtree(place)
    if not (HERE / "out" / "guarantee.json").is_file():
        sys.exit("no model was trained: the lines above say why")


if __name__ == "__main__":
    main()
