"""`spark.read.format("rockoon")`: logs of stores and of live clusters as DataFrames."""
