"""Python clients with a rate limited server: clients.py NAME URL TENANT

Sends CALLS requests at once and prints the status or the error of each.
"""

import concurrent.futures
import sys

CALLS = 20
NAME, URL, TENANT = sys.argv[1:4]
HEADERS = {"X-Forwarded-For": TENANT}


def statuses(get):
    def status(call):
        try:
            return str(get(f"{URL}?call={call}"))
        except Exception as error:
            return f"{type(error).__name__}: {error}".replace("\n", " ")

    with concurrent.futures.ThreadPoolExecutor(CALLS) as threads:
        print("\n".join(threads.map(status, range(CALLS))))


if NAME.startswith("urllib3"):
    import urllib3

    retries = urllib3.Retry(total=10) if NAME != "urllib3" else None
    pool = urllib3.PoolManager(headers=HEADERS, maxsize=CALLS)
    statuses(lambda url: pool.request("GET", url, retries=retries).status)
elif NAME.startswith("requests"):
    import requests
    import requests.adapters
    import urllib3

    session = requests.Session()
    session.headers.update(HEADERS)
    if NAME != "requests":
        retry = urllib3.Retry(total=10, status_forcelist=[429, 503])
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry, pool_maxsize=CALLS))
    statuses(lambda url: session.get(url).status_code)
elif NAME.startswith("httpx"):
    import httpx

    transport = None
    if NAME != "httpx":
        import httpx_retries

        transport = httpx_retries.RetryTransport(retry=httpx_retries.Retry(total=10))
    client = httpx.Client(headers=HEADERS, transport=transport, timeout=30)
    statuses(lambda url: client.get(url).status_code)
else:
    sys.exit(f"unknown client: {NAME}")
