"""Training of byte-level BPE: from texts to a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from recap.runs.files import atomic_write
from recap.tokenizers.bpe import BPE, END, MASK, NAME, PATTERN, byte_letters

FEWEST = 256 + 2  # the bytes and the specials


def train_bpe(texts: Iterable[str], out: str | Path, size: int = 4096) -> BPE:
    """Learn a vocabulary of `size` ids, write it into the folder `out` as `tokenizer.json`, and load it from there.

    The end of a text has the id 0 and the mask the last one. The same texts give the same file. About 30 seconds for
    100 MB on two cores.
    """
    if size < FEWEST:
        raise ValueError(
            f"a vocabulary of {size} ids has no room for 256 bytes and {FEWEST - 256} specials; ask for more"
        )
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ValueError(
            'training a tokenizer needs the package tokenizers; install it with: pip install "recap-mgm[hf]"'
        ) from error
    learner = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), level])
    learner.decoder = decoders.ByteLevel()
    end, mask = (AddedToken(name, special=True, normalized=False) for name in (END, MASK))
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, special_tokens=[end], initial_alphabet=byte_letters(), show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learner.add_special_tokens([mask])
    if (found := learner.get_vocab_size()) != size:
        raise ValueError(
            f"the texts have pairs for {found} ids only, not for {size}; give more texts or a smaller size"
        )
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / NAME) as file:
        file.write(learner.to_str(pretty=True).encode())
    return BPE.load(out)
