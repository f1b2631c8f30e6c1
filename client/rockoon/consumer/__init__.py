"""Reading: in a consumer group, or at the caller's own pace."""
