"""Contents of model files: tensors and their statistics, configuration, progress of training, vocabulary."""

from polyarr.contents.contents import Contents, Tensor, contents_of
from polyarr.contents.picture import save_histograms
from polyarr.contents.statistics import Statistics

__all__ = ["Contents", "Statistics", "Tensor", "contents_of", "save_histograms"]
