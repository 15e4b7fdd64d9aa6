"""How good are the images? Features of the Inception network, and the metrics computed from them."""

from recap.evaluation.features import InceptionFeatures, load_inception
from recap.evaluation.images import ImageSet, open_images
from recap.evaluation.metrics import (
    FeatureStatistics,
    fid,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_recall,
)

__all__ = [
    "FeatureStatistics",
    "ImageSet",
    "InceptionFeatures",
    "fid",
    "frechet_distance",
    "inception_score",
    "kernel_distance",
    "load_inception",
    "open_images",
    "precision_recall",
]
