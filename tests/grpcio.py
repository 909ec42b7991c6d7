"""Calls the example `tonic_server` as gRPC's own client for Python does.

    grpcio.py HOST:PORT

Needs grpcio and googleapis-common-protos; scripts/examples gets them, and runs
this. Messages are written by hand, so that nothing has to be generated.
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
    """The details of a status, by their type."""
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


def a_rejection_says_what_and_when(get, tenant):
    lamp, metadata = text_field(1, "lamp"), [("x-api-key", tenant)]
    for left in (4, 3, 2, 1, 0):
        product, call = get.with_call(lamp, metadata=metadata, timeout=60)
        assert product.startswith(lamp), product
        told = dict(call.initial_metadata())
        assert told["x-ratelimit-remaining"] == str(left), told
        assert told["x-ratelimit-limit"] == "5", told

    error = rejected(lambda: get(lamp, metadata=metadata, timeout=60))
    assert error.details().startswith("rate limit exceeded: get; retry after "), error
    told = dict(error.trailing_metadata())
    assert told["x-ratelimit-remaining"] == "0", told
    assert 1 <= int(told["retry-after"]) <= 12, told
    found = details(error)
    delay = found[error_details_pb2.RetryInfo].retry_delay.ToNanoseconds() / 1e9
    assert 0 < delay <= 12 and int(told["retry-after"]) - 1 <= delay, (delay, told)
    assert delay * 1000 <= int(told["grpc-retry-pushback-ms"]) <= delay * 1000 + 1, (delay, told)
    violations = found[error_details_pb2.QuotaFailure].violations
    assert [violation.subject for violation in violations] == ["get"], violations
    print("ok: a rejection says what is used up, and when to come back")

    get(lamp, metadata=[("x-api-key", tenant + "-other")], timeout=60)
    print("ok: tenants are told apart by metadata")


def no_wait_overruns_a_deadline(listed, tenant):
    """One each half second; who comes next waits, if it can."""
    metadata = [("x-api-key", tenant)]

    def ask(timeout):
        start = time.monotonic()
        products = list(listed(b"\x08\x03", metadata=metadata, timeout=timeout))
        assert len(products) == 3, products
        return time.monotonic() - start

    ask(60)
    # As many as it takes for the next to have to wait for seconds. Calls that
    # arrive together are taken up in no order; once the first of these had its
    # turn, all of them have been.
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, 60) for _ in range(8)]
        wait(waiting, return_when=FIRST_COMPLETED)
        start = time.monotonic()
        error = rejected(lambda: ask(1))
        took = time.monotonic() - start
        assert took < 1, f"{took} s, with a deadline of 1 s"
        assert details(error)[error_details_pb2.RetryInfo].retry_delay.ToNanoseconds() > 1e9
        print("ok: who would wait beyond its deadline is rejected at once")
        assert ask(60) > 1
        for call in waiting:
            call.result()
    print("ok: who can wait does")


def the_server_is_found_out(channel):
    """Health and reflection, for a stranger's tools."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(text_field(1, "shop.v1.Products"), timeout=60) == b"\x08\x01"
    reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    answers = list(reflect(iter([text_field(7, "")]), timeout=60))
    assert any(b"shop.v1.Products" in answer for answer in answers), answers
    print("ok: health and reflection answer")


def main(address):
    tenant = f"tenant-{time.time_ns()}"
    # What is rejected is seen at once, and not retried behind our back.
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
        the_server_is_found_out(channel)
        a_rejection_says_what_and_when(channel.unary_unary(SERVICE + "Get"), tenant)
        no_wait_overruns_a_deadline(channel.unary_stream(SERVICE + "List"), tenant)


if __name__ == "__main__":
    main(*sys.argv[1:])
