"""Tests of programs that use Rockoon: a real cluster in a couple of seconds.

`rockoon.testing.plugin` has the pytest fixtures, `DisposableCluster` the cluster behind them.
Importing this package must be cheap: pytest loads the plugin in every run if the SDK is installed.
"""
