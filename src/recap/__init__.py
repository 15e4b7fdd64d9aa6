"""ReCAP: masked generative models made fast by reusing context features, with no retraining."""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recap._public import *  # noqa: F403

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """The public names, imported with torch when the first of them is asked for."""
    own = name == "__all__" or not (name.startswith("_") or find_spec(f"{__name__}.{name}"))
    if not own:  # a package of ours, which the import that asks for it finds by itself
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public: Any = import_module("recap._public")
    if name == "accelerate":
        warnings.warn("recap.accelerate is now recap.wrap; this name goes with 0.3", DeprecationWarning, stacklevel=2)
        return public.wrap
    if name != "__all__" and name not in public.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    return [*import_module("recap._public").__all__, "__version__"]
