"""Graphs and models on a real HDFS: the tests of S3 run with another place."""

from __future__ import annotations

import pytest

from tests.graphs.test_object_graphs import (  # noqa: F401 (fixtures, and tests that are collected here too)
    inputs,
    roots,
    test_a_run_that_lost_its_host_goes_on_from_the_table,
    test_edges_and_nodes_are_read_from_parquet_files_on_the_server,
    test_graphs_features_and_models_have_the_bits_of_a_folder,
    test_the_next_night_computes_what_changed_to_the_bits_of_a_full_run,
    test_walks_have_the_rows_of_a_folder,
)

pytestmark = pytest.mark.slow  # HDFS needs a while for each of the many small files


@pytest.fixture
def bucket(hdfs_place: str) -> str:
    """URI of a new folder of HDFS, where the tests of S3 have a bucket."""
    return hdfs_place
