#!/usr/bin/env python3
"""Time the unedited code of the peers with random weights, one JSON line per measurement.

    RECAP_OTHERS=others python benchmarks/others.py --out others.jsonl ITEM [ITEM ...]

RECAP_OTHERS is a folder with their repositories as sub-folders mar, recap (the authors' examples/MAR+ReCAP), lazymar,
nat (AutoNAT) and mage, and where they are wanted commits in COMMITS.json. They need timm and the like; a sub-folder
`shim` with stand-ins for such packages is looked at first.

ITEM                     what is run
  mar-l:64               LTH14/mar, MAR-L (also -b, -h), sample_tokens with 64 iterations, --batch images
  mar-l:96@1             the same at batch 1
  mar-l:12of96@1         batch 1 only: a whole run of 12 iterations, scaled by 96/12 (said in the JSON)
  recap-l:72+24          the authors' ReCAP, T+T' (u = half of T+T', one local step a group: their script)
  recap-l:96             the authors' code without reuse
  lazymar-l:64           LazyMAR in its lazy mode
  lazymar-l:64plain      LazyMAR's code, plain
  autonat-l[@B]          AutoNAT-L U-ViT, one forward pass, fp16 autocast, batch 200 unless @B
  autonat-l-sdpa[@B]     the same, xformers' attention call served by torch's fused attention
  mage-l[@B]             MAGE ViT-L, one forward pass, float32, torch's default TF32 flags, batch 200 unless @B
  mage-l-tf32[@B]        the same with TF32 matrix products allowed

Each measurement: a warm-up over exactly the shapes of the timed run (the same schedule with the stacks cut
to 1 layer, LazyMAR 5, and 4 diffusion steps), then one whole timed run between synchronisations. The
tokenizer is never built into the time. Items are independent: a failure is printed and the next item starts.
"""

import argparse
import contextlib
import datetime
import functools
import gc
import importlib
import json
import os
import re
import statistics
import sys
import time
import traceback
import types
import warnings

sys.dont_write_bytecode = True
ROOT = os.path.abspath(os.environ.get("RECAP_OTHERS", "others"))
sys.path.insert(0, os.path.join(ROOT, "shim"))
sys.path.append(os.path.join(ROOT, "shim_fallback"))
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message=".*autocast.*")
warnings.filterwarnings("ignore", message=".*lr_scheduler.*")

import numpy as np  # noqa: E402
import torch  # noqa: E402

COMMITS = {}
if os.path.exists(os.path.join(ROOT, "COMMITS.json")):
    with open(os.path.join(ROOT, "COMMITS.json")) as _file:
        COMMITS = json.load(_file)
CUDA = True  # set in main

# MAR sizes: constructor, head depth, head width, guidance of the README / of the authors' ReCAP script
MAR = {"b": ("mar_base", 6, 1024, 2.9), "l": ("mar_large", 8, 1280, 3.0), "h": ("mar_huge", 12, 1536, 3.2)}
LAZY_CFG = 3.25  # LazyMAR's default for every size
TINY = {
    "encoder_embed_dim": 32,
    "encoder_depth": 6,
    "encoder_num_heads": 2,
    "decoder_embed_dim": 32,
    "decoder_depth": 6,
    "decoder_num_heads": 2,
    "mlp_ratio": 4,
    "diffloss_d": 6,
    "diffloss_w": 32,
    "num_sampling_steps": "10",
}

# Seconds of GPU time to expect (H200), only for --limit: per iteration at batch 128
EST = {
    ("mar", "b"): 0.25,
    ("mar", "l"): 0.57,
    ("mar", "h"): 0.76,
    ("recap", "b"): 0.3,
    ("recap", "l"): 0.64,
    ("recap", "h"): 0.76,
    ("lazymar", "b"): 0.2,
    ("lazymar", "l"): 0.36,
    ("lazymar", "h"): 0.65,
}


def log(*a):
    print(*a, file=sys.stderr, flush=True)


def sync():
    if CUDA:
        torch.cuda.synchronize()


def patch_cpu():
    """No CUDA here: make the unconditional .cuda() calls of the foreign code do nothing."""
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.nn.Module.cuda = lambda self, *a, **k: self
    torch.cuda.synchronize = lambda *a, **k: None


# ---------------------------------------------------------------- loading foreign code
PACKAGES = ("models", "diffusion", "diffusion_cached", "util", "taming", "libs", "models_mage")


def load(folder, module, tables):
    """Import `module` out of official/<folder>; the repositories use the same package names, so forget the last."""
    for name in [n for n in sys.modules if n.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    base = os.path.join(ROOT, folder)
    sys.path[:] = [p for p in sys.path if os.path.dirname(p) != ROOT or os.path.basename(p).startswith("shim")]
    sys.path.insert(0, base)
    for name in PACKAGES:  # packages without __init__.py: do not let another `models` further down the path win
        d = os.path.join(base, name)
        if os.path.isdir(d) and not os.path.exists(os.path.join(d, "__init__.py")):
            pkg = types.ModuleType(name)
            pkg.__path__ = [d]
            sys.modules[name] = pkg
    importlib.invalidate_caches()
    if tables == "bounded":
        for name in ("diffusion", "diffusion_cached"):
            if os.path.isdir(os.path.join(base, name)):
                bound(importlib.import_module(name + ".gaussian_diffusion").GaussianDiffusion)
    return importlib.import_module(module)


def bound(cls):
    """Random weights do not predict the noise, so the true tables blow tokens up by 1/sqrt(abar) = 2e4 and fp16
    overflows to NaN. Other numbers in four tables keep tokens of order one; every operation and shape stays."""
    init = cls.__init__

    def patched(self, *a, **k):
        init(self, *a, **k)
        self.sqrt_recip_alphas_cumprod[:] = 0.9
        self.sqrt_recipm1_alphas_cumprod[:] = 0.1
        self.posterior_mean_coef1[:] = 0.5
        self.posterior_mean_coef2[:] = 0.5

    cls.__init__ = patched


def unzero(module):
    """Zero-initialised matrices multiply faster on a power-limited card than trained ones: give them small values."""
    n = 0
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim == 2 and not p.any():
                p.normal_(std=0.02)
                n += 1
    return n


def on_device():
    return torch.device("cuda") if CUDA else contextlib.nullcontext()


def amp():
    """What the official engines open around sample_tokens; LazyMAR's own CPU path opens nothing."""
    return torch.cuda.amp.autocast() if CUDA else contextlib.nullcontext()


# ---------------------------------------------------------------- MAR, ReCAP, LazyMAR
class Head:
    """Stream time inside diffloss.sample by events (two records a step, no synchronisation)."""

    def __init__(self, diffloss):
        self.diffloss, self.marks, inner = diffloss, [], diffloss.sample

        def sample(*a, **k):
            m = self.mark()
            out = inner(*a, **k)
            self.marks.append((m, self.mark()))
            return out

        diffloss.sample = sample

    @staticmethod
    def mark():
        if not CUDA:
            return time.perf_counter()
        e = torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def close(self):
        del self.diffloss.sample
        return sum(a.elapsed_time(b) / 1e3 if CUDA else b - a for a, b in self.marks)


class Counter:
    """How many full and local (ReCAP) or fresh and lazy (LazyMAR) evaluations there were."""

    def __init__(self, model, code):
        self.model, self.code, self.n = model, code, [0, 0]
        self.name = "global_force_fresh" if code == "lazymar" else "forward_mae_encoder"
        inner = getattr(model, self.name)

        def wrapped(*a, **k):
            out = inner(*a, **k)
            cheap = not out and model.lazy_mar if code == "lazymar" else k.get("position_ids") is not None
            self.n[bool(cheap)] += 1
            return out

        model.__dict__[self.name] = wrapped

    def close(self):
        del self.model.__dict__[self.name]
        return self.n


def build_mar(code, size, args, **extra):
    module = load(code, "models.mar_cache" if code == "lazymar" else "models.mar", args.tables)
    name, d, w, _ = MAR[size]
    with on_device():
        if args.tiny:
            ln = functools.partial(torch.nn.LayerNorm, eps=1e-6)
            model = module.MAR(norm_layer=ln, **TINY, **extra)
        else:
            model = getattr(module, name)(
                img_size=256,
                vae_stride=16,
                patch_size=1,
                vae_embed_dim=16,
                mask_ratio_min=0.7,
                label_drop_prob=0.1,
                class_num=1000,
                attn_dropout=0.1,
                proj_dropout=0.1,
                buffer_size=64,
                diffloss_d=d,
                diffloss_w=w,
                num_sampling_steps="100",
                diffusion_batch_mul=1,
                grad_checkpointing=False,
                **extra,
            )
    if args.init == "nonzero":
        unzero(model.diffloss)
    return model.eval()


@contextlib.contextmanager
def shortened(model, code):
    """The same schedule and shapes on few layers and few diffusion steps."""
    layers = 5 if code == "lazymar" else 1  # LazyMAR prunes at its layer 3 and restores at its last
    head = model.diffloss
    create = type(head).__init__.__globals__["create_diffusion"]
    keep = (model.encoder_blocks, model.decoder_blocks, head.gen_diffusion, getattr(model, "encoder_depth", None))
    model.encoder_blocks, model.decoder_blocks = keep[0][:layers], keep[1][:layers]
    head.gen_diffusion = create(timestep_respacing="4", noise_schedule="cosine")
    if code == "lazymar":
        model.encoder_depth = layers
    if code == "recap":
        head.fast_gen_diffusion = create(timestep_respacing="2", noise_schedule="cosine")
    try:
        yield
    finally:
        model.encoder_blocks, model.decoder_blocks, head.gen_diffusion = keep[:3]
        if code == "lazymar":
            model.encoder_depth = keep[3]
        if code == "recap":
            head.fast_gen_diffusion = None  # their first sample() call builds it: 50 steps


def run_mar(item, args):
    m = re.fullmatch(r"(mar|recap|lazymar)-([blh]):(?:(\d+)of)?(\d+)(?:\+(\d+))?(plain)?(?:@(\d+))?", item)
    if not m:
        raise ValueError(f"cannot read item {item!r}")
    code, size, part, first, second, plain, batch = m.groups()
    first, batch = int(first), int(batch or (2 if args.tiny else args.batch))
    total = first + int(second or 0)
    if part and (code != "mar" or batch != 1):
        raise ValueError("KofT is only honest at batch 1, where every iteration costs the same launches")
    iters = int(part or total)
    cfg = LAZY_CFG if code == "lazymar" else MAR[size][3]
    labels = torch.arange(batch).remainder(1000).cuda()
    kw = {"bsz": batch, "num_iter": iters, "cfg": cfg, "cfg_schedule": "linear", "labels": labels, "temperature": 1.0}
    extra = {}
    if code == "lazymar":
        extra["lazy_mar"] = not plain
        kw["args"] = types.SimpleNamespace(device="cuda" if CUDA else "cpu", lazy_mar=not plain)
        setting = f"{total} steps, " + (
            "plain" if plain else "lazy: full at steps 0-5 and every 9th after, head cache 7"
        )
    elif code == "recap":
        u = total // 2 if second else total  # their script: pre_full_iters = num_iter / 2
        if second and (total - u) // 2 != int(second):
            raise ValueError(f"{first}+{second} is not what their rule gives for {total} sub-steps")
        kw |= {"pre_full_iters": u, "num_cache_iters": 1, "cache_buffer": False, "diff_fast_ratio": "0.4"}
        setting = f"{first}+{second} (u={u})" if second else f"{total} steps, no reuse"
    else:
        setting = f"{total} steps"
    t = time.perf_counter()
    model = build_mar(code, size, args, **extra)
    log(f"  built in {time.perf_counter() - t:.1f} s")

    def go():
        np.random.seed(1)  # noqa: NPY002 (theirs draw from it)
        torch.manual_seed(1)
        with torch.no_grad(), amp():
            return model.sample_tokens(**kw)

    torch.backends.cudnn.benchmark = True  # as the three main programs do; nothing here is a convolution
    t = time.perf_counter()
    with shortened(model, code):
        go()
    sync()
    warm = time.perf_counter() - t
    log(f"  warm-up {warm:.1f} s")
    times, heads, counts, finite = [], [], None, True
    for _ in range(args.repeat):
        head, counter = Head(model.diffloss), Counter(model, code)
        sync()
        t = time.perf_counter()
        out = go()
        sync()
        times.append(time.perf_counter() - t)
        heads.append(head.close())
        counts = counter.close()
        out, own = out if isinstance(out, tuple) else (out, None)  # ReCAP returns its own head time too
        finite = finite and bool(torch.isfinite(out).all())
        assert out.shape == (batch, 16, 16, 16), out.shape
    sec, scale = statistics.median(times), total / iters
    full, cheap = counts
    r = {
        "model": f"MAR-{size.upper()}",
        "setting": setting,
        "batch": batch,
        "seconds_per_image": sec * scale / batch,
        "head_seconds_per_image": statistics.median(heads) * scale / batch,
        "measured_seconds": times,
        "iterations_run": iters,
        "full_evaluations": full,
        "cheap_evaluations": cheap,
        "cfg": cfg,
        "cfg_schedule": "linear",
        "diffusion_steps": int(TINY["num_sampling_steps"]) if args.tiny else 100,
        "precision": "float32" if not CUDA else "fp16 autocast, fp32 weights",
        "warmup_seconds": warm,
        "init": "constructor, zero matrices of the head N(0, 0.02)" if args.init == "nonzero" else "constructor",
        "diffusion_tables": args.tables,
        "finite": finite,
        "parameters_millions": sum(p.numel() for p in model.parameters()) / 1e6,
    }
    if code == "recap":
        r["local_diffusion_steps"] = int(model.diffloss.num_fast_sampling_steps)
        r["authors_diff_seconds_per_image"] = own / batch
    if part:
        r["scaled"] = f"whole run of {iters} iterations times {total}/{iters}"
    return code, r


# ---------------------------------------------------------------- one forward pass: AutoNAT, MAGE
def time_forward(step, args):
    with torch.no_grad():
        for _ in range(3):
            out = step()
        sync()
        times = []
        for _ in range(args.forwards):
            sync()
            t = time.perf_counter()
            out = step()
            sync()
            times.append(time.perf_counter() - t)
    return times, bool(torch.isfinite(out).all())


def forward_row(name, setting, batch, times, finite, model, **k):
    used = [p.numel() for n, p in model.named_parameters() if not n.startswith("vqgan")]
    return dict(
        model=name,
        setting=setting,
        batch=batch,
        seconds_per_image=statistics.median(times) / batch,
        unit="seconds per image and step",
        batch_milliseconds=statistics.median(times) * 1e3,
        measured_seconds=times,
        finite=finite,
        parameters_millions=sum(used) / 1e6,
        **k,
    )


def run_autonat(sdpa, batch, args):
    import timm

    shim, timm.__version__ = timm.__version__, "0.3.2"  # nat_model.py asserts it
    try:
        module = load("nat", "libs.nat_model", args.tables)
    finally:
        timm.__version__ = shim
    module.XFORMERS_IS_AVAILBLE = sdpa  # spelt so in their file

    def attention(q, k, v):  # B L H D, as xformers.ops.memory_efficient_attention
        return torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(
            1, 2
        )

    module.xformers = types.SimpleNamespace(ops=types.SimpleNamespace(memory_efficient_attention=attention))
    conf = {
        "img_size": 16,
        "codebook_size": 1024,
        "embed_dim": 768,
        "depth": 24,
        "num_heads": 8,
        "mlp_ratio": 4,
        "qkv_bias": False,
        "num_classes": 1001,
        "use_checkpoint": False,
        "skip": True,
    }
    if args.tiny:
        conf |= {"embed_dim": 32, "depth": 4, "num_heads": 2}
    with on_device(), contextlib.redirect_stdout(sys.stderr):
        model = module.UViT(**conf).eval()
    ids = torch.randint(0, 1024, (batch, 256)).cuda()
    ids[torch.rand(batch, 256).cuda() < 0.5] = 1024
    context = torch.randint(0, 1000, (batch, 1)).cuda()

    def step():
        with amp():
            return model(ids, context=context)

    times, finite = time_forward(step, args)
    return "nat", forward_row(
        "AutoNAT-L",
        "U-ViT forward, one branch, "
        + ("xformers' call served by torch fused attention" if sdpa else "their attention without xformers"),
        batch,
        times,
        finite,
        model,
        precision="fp16 autocast, fp32 weights" if CUDA else "float32",
    )


def run_mage(tf32, batch, args):
    if not hasattr(np, "float"):
        vars(np)["float"] = float  # util/pos_embed.py was written for numpy < 1.24
    module = load("mage", "models_mage", args.tables)
    here = os.getcwd()
    os.chdir(os.path.join(ROOT, "mage"))  # reads config/vqgan.yaml
    try:
        kw = {
            "norm_pix_loss": False,
            "mask_ratio_mu": 0.55,
            "mask_ratio_std": 0.25,
            "mask_ratio_min": 0.0,
            "mask_ratio_max": 1.0,
            "vqgan_ckpt_path": None,
        }
        with on_device(), contextlib.redirect_stdout(sys.stderr):
            if args.tiny:
                model = module.MaskedGenerativeEncoderViT(
                    embed_dim=32,
                    depth=2,
                    num_heads=2,
                    decoder_embed_dim=32,
                    decoder_depth=2,
                    decoder_num_heads=2,
                    **kw,
                )
            else:
                model = module.mage_vit_large_patch16(**kw)
    finally:
        os.chdir(here)
    model.eval()
    ids = torch.randint(0, 1024, (batch, 257)).cuda()
    ids[torch.rand(batch, 257).cuda() < 0.5] = model.mask_token_label
    ids[:, 0] = model.fake_class_label
    masked = ids == model.mask_token_label
    dropped = torch.zeros_like(ids)

    def step():  # the network part of gen_image in gen_img_uncond.py
        x = model.token_emb(ids)
        for blk in model.blocks:
            x = blk(x)
        x = model.norm(x)
        return model.forward_decoder(x, dropped, masked)[:, 1:, :1024]

    default = torch.backends.cuda.matmul.allow_tf32
    try:
        if tf32:
            torch.backends.cuda.matmul.allow_tf32 = True
        times, finite = time_forward(step, args)
        flag = torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = default
    return "mage", forward_row(
        "MAGE-L",
        "encoder and decoder forward",
        batch,
        times,
        finite,
        model,
        precision="TF32" if tf32 else "float32",
        allow_tf32=flag,
    )


# ---------------------------------------------------------------- driver
def run(item, args):
    m = re.fullmatch(r"(autonat-l|autonat-l-sdpa|mage-l|mage-l-tf32)(?:@(\d+))?", item)
    if not m:
        return run_mar(item, args)
    name, batch = m[1], int(m[2] or (2 if args.tiny else 200))
    if name.startswith("autonat"):
        return run_autonat(name.endswith("sdpa"), batch, args)
    return run_mage(name.endswith("tf32"), batch, args)


def estimate(item, args):
    m = re.fullmatch(r"(mar|recap|lazymar)-([blh]):(?:(\d+)of)?(\d+)(?:\+(\d+))?(plain)?(?:@(\d+))?", item)
    if not m:
        return 16 if item.startswith("mage") else 6
    code, size, part, a, b, plain, batch = m.groups()
    n = int(part or int(a) + int(b or 0))
    batch = int(batch or args.batch)
    each = EST[code, size] * (1.0 if not plain else 1.6)
    each = max(each * batch / 128, {"b": 0.25, "l": 0.36, "h": 0.6}[size] * (0.7 if code == "lazymar" else 1))
    if not b and code != "lazymar" and n > 128:
        each *= 0.98
    return n * each * 1.03 * args.repeat + 6


def parser():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("items", nargs="+", metavar="ITEM")
    options.add_argument("--out", help="append the JSON lines to this file")
    options.add_argument("--batch", type=int, default=128, help="batch of the sampling items (128)")
    options.add_argument("--repeat", type=int, default=1, help="timed whole runs per sampling item (1)")
    options.add_argument("--forwards", type=int, default=7, help="timed passes per forward item (7)")
    options.add_argument("--limit", type=float, help="start no item whose estimate does not fit in this many seconds")
    options.add_argument("--plan", action="store_true", help="print the estimates and stop")
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--tiny", action="store_true", help="shrunken networks, batch 2 (smoke test)")
    options.add_argument("--tables", default="bounded", choices=["bounded", "official"], help="see bound()")
    options.add_argument("--init", default="nonzero", choices=["nonzero", "official"], help="see unzero()")
    return options


def main():
    global CUDA
    args = parser().parse_args()
    if args.plan:
        for item in args.items:
            print(f"{estimate(item, args):7.0f} s  {item}")
        print(f"{sum(estimate(i, args) for i in args.items):7.0f} s  in all, plus about 10 s to start")
        return 0
    CUDA = args.device == "cuda"
    if not CUDA:
        patch_cpu()
    start, failed = time.perf_counter(), 0
    for item in args.items:
        left = None if args.limit is None else args.limit - (time.perf_counter() - start)
        if left is not None and estimate(item, args) > left and not args.tiny:
            log(f"{item}: left out, needs about {estimate(item, args):.0f} s and {left:.0f} s are left")
            continue
        log(f"{item} ...")
        head = {"item": item}
        t = time.perf_counter()
        try:
            if CUDA:
                torch.cuda.reset_peak_memory_stats()
            code, row = run(item, args)
            row = (
                head
                | {
                    "code": COMMITS.get(code, {}).get("repo", code),
                    "commit": COMMITS.get(code, {}).get("commit", None),
                }
                | row
            )
        except Exception as e:
            failed += 1
            traceback.print_exc()
            row = head | {"error": f"{type(e).__name__}: {e}"[:500]}
        try:
            row |= {
                "device": torch.cuda.get_device_name() if CUDA else "cpu",
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "tiny": args.tiny,
                "item_seconds": time.perf_counter() - t,
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if CUDA else None,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
        except Exception:
            traceback.print_exc()
        line = json.dumps(row)
        print(line, flush=True)
        if args.out:
            with open(args.out, "a") as f:
                f.write(line + "\n")
        gc.collect()
        if CUDA:
            with contextlib.suppress(Exception):
                torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
