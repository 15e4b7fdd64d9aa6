"""How good are the images? Features of the Inception network, and the metrics computed from them."""

from recap.evaluation.fid import FeatureStatistics, fid, frechet_distance
from recap.evaluation.images import ImageSet, open_images
from recap.evaluation.inception import (
    InceptionFeatures,
    convert_torchscript,
    load_inception,
    resize_half_pixel,
    resize_tf1,
)
from recap.evaluation.kid import kernel_distance
from recap.evaluation.precision_recall import precision_recall
from recap.evaluation.reservoir import FeatureReservoir
from recap.evaluation.score import ScoreSums

__all__ = [
    "FeatureReservoir",
    "FeatureStatistics",
    "ImageSet",
    "InceptionFeatures",
    "ScoreSums",
    "convert_torchscript",
    "fid",
    "frechet_distance",
    "kernel_distance",
    "load_inception",
    "open_images",
    "precision_recall",
    "resize_half_pixel",
    "resize_tf1",
]
