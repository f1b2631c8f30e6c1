"""KEDA's interface of external scalers."""
