"""For tests of programs that use Rockoon: a real cluster in a couple of seconds.

`rockoon.testing.plugin` brings the pytest fixtures; `DisposableCluster` is what they are made of.
Importing this package costs nothing: pytest loads the plugin in every run of everybody who has the
SDK installed.
"""
