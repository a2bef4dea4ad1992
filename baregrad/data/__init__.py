"""Small real data sets, and the loader that feeds batches of any data set."""

from baregrad.data.loading import DataLoader

__all__ = ["DataLoader"]
