"""Published data sets: one file per family, found by scanning for `DatasetInfo`."""
