"""KEDA's side of the external scaler: asks once and prints the answers as JSON.

Usage: keda.py HOST:PORT GROUP TOPIC THRESHOLD.
"""

import json
import sys

import grpc

from rockoon_proto.keda import externalscaler_pb2 as messages
from rockoon_proto.keda import externalscaler_pb2_grpc as calls

TIMEOUT_SECONDS = 10


def main() -> None:
    address, group, topic, threshold = sys.argv[1:]
    metadata = {"scalerAddress": address, "group": group, "topic": topic}
    trigger = messages.ScaledObjectRef(
        name=group,
        namespace="default",
        scalerMetadata=metadata | {"lagThreshold": threshold, "pollSeconds": "1"},
    )
    with grpc.insecure_channel(address) as channel:
        scaler = calls.ExternalScalerStub(channel)
        active = scaler.IsActive(trigger, timeout=TIMEOUT_SECONDS).result
        first = next(iter(scaler.StreamIsActive(trigger, timeout=TIMEOUT_SECONDS))).result
        (spec,) = scaler.GetMetricSpec(trigger, timeout=TIMEOUT_SECONDS).metricSpecs
        request = messages.GetMetricsRequest(scaledObjectRef=trigger, metricName=spec.metricName)
        (metric,) = scaler.GetMetrics(request, timeout=TIMEOUT_SECONDS).metricValues
    target = spec.targetSizeFloat or spec.targetSize
    value = metric.metricValueFloat or metric.metricValue
    print(json.dumps({"active": active, "stream": first, "target": target, "value": value}))


if __name__ == "__main__":
    main()
