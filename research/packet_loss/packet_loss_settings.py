"""Settings of compare_packet_loss: its constants and its command line."""

import argparse
import pathlib

import comparison
from comparison import ROOT, STUDENT

ABLATIONS = {
    "count": "divided by the number that came",
    "zero_fill": "missing gradients are zeros",
    "zero_parameters": "missing parameters become zeros",
    "differences": "changes instead of values",
}
MARGINS = {10.0: 1.2, 20.0: 2.6, 30.0: 3.8}  # percent of perplexity, by percent of loss
MODEL = {"layers": 4, "width": 160, "heads": 5, "hidden": 432, "context": 64, "batch": 64, "lr": 0.002}
QUICK = {"layers": 2, "width": 96, "heads": 3, "hidden": 256, "context": 64, "batch": 16, "lr": 0.004}
NOTHING = "nothing"  # in the place of an ablation: nothing is done wrong, with the seeds that ablations have
POINTS = 10     # losses on the held-out text, in a training
DRIFT = 10      # steps between measurements of drift, and those whose updates its formulae are about
# percent: what did not come may differ so much from what was asked for; deadlines and repairs on busy cores make it more
NEAR = 1.5
TRIES = 2       # a training that fails is tried once more
LEARNT = 20     # steps until deadlines are learnt, when the loss of a step really begins


def make_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="training text, see prepare_text.sh")
    parser.add_argument("--losses", help="lost packets in percent, separated by commas; 0 always runs (default: 0,1,5,10,20,30)")
    parser.add_argument("--ablations", default=",".join(ABLATIONS), help="ablations from %(default)s; '' for none (default: all)")
    parser.add_argument("--ablation-losses", help="lost packets in percent for ablations (default: 10,20)")
    parser.add_argument("--seeds", type=int, help=f"trainings of each kind, at most {max(STUDENT)} (default: 5)")
    parser.add_argument(
        "--first-seed",
        type=int,
        default=1,
        help="first seed; for example 101 for experiments that must not use the seeds of the comparison (default: %(default)s)",
    )
    parser.add_argument("--ablation-seeds", type=int, help="trainings of each ablation (default: 3)")
    parser.add_argument("--steps", type=int, help="steps of each training (default: 800)")
    parser.add_argument(
        "--stale-max",
        type=int,
        default=16,
        help="age in steps at which missing values are requested from their owner (default: %(default)s)",
    )
    parser.add_argument("-n", "--ranks", type=int, default=8, help="processes (default: %(default)s)")
    parser.add_argument(
        "--held-out",
        type=int,
        default=256,
        help="sequences of the held-out text per validation; a multiple of the number of ranks (default: %(default)s)",
    )
    comparison.add_model_options(parser, MODEL)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="rates 0, 10, 20 and 30, 3 seeds, ablations at 20 %% with one seed, 120 steps of a smaller model",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an earlier comparison; its options must be equal, except seeds, rates and ablations",
    )
    parser.add_argument(
        "--no-namespaces",
        action="store_true",
        help="run the ranks as processes of this host, whose transport drops packets instead of the kernel",
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/training_packet_loss", help="default: %(default)s")
    parser.add_argument(
        "--build",
        type=pathlib.Path,
        default=ROOT / "build/release",
        help="build folder of unisono and train_model (default: %(default)s)",
    )
    return parser


def parse_arguments(description):
    """The settings of the comparison. Ends the process with a message if they do not fit together."""
    parser = make_parser(description)
    options = parser.parse_args()
    usual = (
        {"losses": "0,10,20,30", "ablation_losses": "20", "seeds": 3, "ablation_seeds": 1, "steps": 120}
        if options.quick
        else {"losses": "0,1,5,10,20,30", "ablation_losses": "10,20", "seeds": 5, "ablation_seeds": 3, "steps": 800}
    )
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    comparison.set_defaults(options, QUICK if options.quick else MODEL)
    options.ablations = [name for name in options.ablations.split(",") if name]
    unknown = [name for name in options.ablations if name not in ABLATIONS]
    if unknown:
        parser.error(f"--ablations: {', '.join(unknown)} is none of {', '.join(ABLATIONS)}")
    options.losses = sorted({0.0, *map(float, options.losses.split(","))})
    options.ablation_losses = sorted(map(float, options.ablation_losses.split(",")))
    if not all(0 <= loss < 100 for loss in (*options.losses, *options.ablation_losses)):
        parser.error("--losses, --ablation-losses: percent, below 100")
    if not 1 <= options.seeds <= max(STUDENT):
        parser.error(f"--seeds: 1 to {max(STUDENT)}")
    options.ablation_seeds = min(options.ablation_seeds, options.seeds)
    if options.steps <= LEARNT:
        parser.error(f"--steps: more than {LEARNT}, in which deadlines are learnt")
    return options
