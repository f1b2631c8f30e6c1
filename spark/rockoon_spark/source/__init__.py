"""`spark.read.format("rockoon")`: logs of store directories and live clusters as DataFrames."""
