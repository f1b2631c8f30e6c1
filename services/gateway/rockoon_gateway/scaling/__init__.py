"""Replicas of consumers by lag: KEDA's external scaler."""
