"""Calls the example `tonic_server` with gRPC's own client for Python.

    grpcio.py HOST:PORT

Needs grpcio and googleapis-common-protos. scripts/examples installs them and runs
this file. Messages are encoded by hand, so that no code has to be generated.
"""

import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import grpc
from google.rpc import error_details_pb2, status_pb2

SERVICE = "/shop.v1.Products/"


def text_field(number, text):
    return bytes([number << 3 | 2, len(text)]) + text.encode()


def details(error):
    """The details of a status, by type."""
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert status.code == error.code().value[0], status
    assert status.message == error.details(), (status, error.details())
    found = {}
    for detail in status.details:
        for kind in (error_details_pb2.RetryInfo, error_details_pb2.QuotaFailure):
            if detail.Is(kind.DESCRIPTOR):
                found[kind] = kind.FromString(detail.value)
    return found


def rejected(call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        return error
    raise AssertionError("it was not rejected")


def a_rejection_names_the_rule_and_the_retry_delay(get, tenant):
    lamp, metadata = text_field(1, "lamp"), [("x-api-key", tenant)]
    for left in (4, 3, 2, 1, 0):
        product, call = get.with_call(lamp, metadata=metadata, timeout=60)
        assert product.startswith(lamp), product
        metadata_sent = dict(call.initial_metadata())
        assert metadata_sent["x-ratelimit-remaining"] == str(left), metadata_sent
        assert metadata_sent["x-ratelimit-limit"] == "5", metadata_sent

    error = rejected(lambda: get(lamp, metadata=metadata, timeout=60))
    assert error.details().startswith("rate limit exceeded: get; retry after "), error
    trailers = dict(error.trailing_metadata())
    assert trailers["x-ratelimit-remaining"] == "0", trailers
    assert 1 <= int(trailers["retry-after"]) <= 12, trailers
    found = details(error)
    delay = found[error_details_pb2.RetryInfo].retry_delay.ToNanoseconds() / 1e9
    assert 0 < delay <= 12 and int(trailers["retry-after"]) - 1 <= delay, (delay, trailers)
    assert delay * 1000 <= int(trailers["grpc-retry-pushback-ms"]) <= delay * 1100 + 1, (delay, trailers)
    violations = found[error_details_pb2.QuotaFailure].violations
    assert [violation.subject for violation in violations] == ["get"], violations
    print("ok: a rejection names the violated rule and the retry delay")

    get(lamp, metadata=[("x-api-key", tenant + "-other")], timeout=60)
    print("ok: metadata identifies the tenant")


def no_wait_outlasts_a_deadline(listed, tenant):
    """One call every half second. Others wait, if their deadline allows it."""
    metadata = [("x-api-key", tenant)]

    def ask(timeout):
        start = time.monotonic()
        products = list(listed(b"\x08\x03", metadata=metadata, timeout=timeout))
        assert len(products) == 3, products
        return time.monotonic() - start

    ask(60)
    # Enough calls that the next one has to wait for seconds. The server accepts
    # concurrent calls in any order; once the first is answered, all are queued.
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, 60) for _ in range(8)]
        wait(waiting, return_when=FIRST_COMPLETED)
        start = time.monotonic()
        error = rejected(lambda: ask(1))
        took = time.monotonic() - start
        assert took < 1, f"{took} s, with a deadline of 1 s"
        assert details(error)[error_details_pb2.RetryInfo].retry_delay.ToNanoseconds() > 1e9
        print("ok: a call that would wait beyond its deadline is rejected at once")
        assert ask(60) > 1
        for call in waiting:
            call.result()
    print("ok: a call whose deadline allows the wait is delayed")


def health_and_reflection_answer(channel):
    """Health checks and reflection."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(text_field(1, "shop.v1.Products"), timeout=60) == b"\x08\x01"
    reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    answers = list(reflect(iter([text_field(7, "")]), timeout=60))
    assert any(b"shop.v1.Products" in answer for answer in answers), answers
    print("ok: health and reflection answer")


def main(address):
    tenant = f"tenant-{time.time_ns()}"
    # Without the client's own retries, so that a rejection is visible.
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
        health_and_reflection_answer(channel)
        a_rejection_names_the_rule_and_the_retry_delay(channel.unary_unary(SERVICE + "Get"), tenant)
        no_wait_outlasts_a_deadline(channel.unary_stream(SERVICE + "List"), tenant)


if __name__ == "__main__":
    main(*sys.argv[1:])
