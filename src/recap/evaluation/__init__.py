"""How good are the images? Inception features, and the Fréchet distance between two sets of them."""

from recap.evaluation.fid import FeatureStatistics, fid, frechet_distance
from recap.evaluation.inception import InceptionFeatures, convert_torchscript, resize_half_pixel, resize_tf1

__all__ = [
    "FeatureStatistics",
    "InceptionFeatures",
    "convert_torchscript",
    "fid",
    "frechet_distance",
    "resize_half_pixel",
    "resize_tf1",
]
