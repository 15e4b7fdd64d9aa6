"""The method, in torch alone.

Shapes, once for the whole library: `B` images, `N` tokens, `M` target set, `C` candidates (or channels of a
latent), `L` cache rows, `D` width, `H` heads, `Dh` head width, `V` codebook. Under guidance the leading axis
is `2B`, conditional branch first.
"""
