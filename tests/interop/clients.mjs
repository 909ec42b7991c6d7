// Node clients with a rate limited server: clients.mjs NAME URL TENANT
// Sends CALLS requests at once and prints the status or the error of each.
// `run.py` copies this file next to the installed packages.

import axios from "axios";
import axiosRetry from "axios-retry";
import { got } from "got";
import ky from "ky";
import * as undici from "undici";

const CALLS = 20;
const [name, url, tenant] = process.argv.slice(2);
const headers = { "X-Forwarded-For": tenant };

const withGot = (options) => async (target) => (await got(target, { headers, ...options })).statusCode;
const withKy = (options) => async (target) => (await ky.get(target, { headers, ...options })).status;
const withUndici = (dispatcher) => async (target) => {
  const { statusCode, body } = await undici.request(target, { headers, dispatcher });
  await body.dump();
  return statusCode;
};
const withAxios = (options) => {
  const client = axios.create();
  if (options) axiosRetry(client, options);
  return async (target) => (await client.get(target, { headers })).status;
};

const clients = {
  "node fetch": () => async (target) => {
    const response = await fetch(target, { headers });
    await response.text();
    return response.status;
  },
  got: () => withGot({}),
  "got, 10 retries": () => withGot({ retry: { limit: 10 } }),
  axios: () => withAxios(),
  "axios-retry": () => withAxios({}),
  "axios-retry, 10 of 429": () =>
    withAxios({
      retries: 10,
      retryDelay: axiosRetry.exponentialDelay,
      retryCondition: (error) => error.response?.status === 429,
    }),
  ky: () => withKy({}),
  "ky, 10 retries": () => withKy({ retry: { limit: 10 }, timeout: 60_000 }),
  undici: () => withUndici(),
  "undici RetryAgent": () => withUndici(new undici.RetryAgent(new undici.Agent())),
};

const get = clients[name]();
const outcome = (call) =>
  get(`${url}?call=${call}`).catch(
    (error) => error.response?.status ?? error.response?.statusCode ?? error.statusCode ?? `${error.name}: ${error.message}`,
  );
const outcomes = await Promise.all(Array.from({ length: CALLS }, (_, call) => outcome(call)));
console.log(outcomes.join("\n"));
process.exit(0);
