// SPDX-License-Identifier: Apache-2.0
// Compares our HTTP/1 request parser with Node's (llhttp), gateway.md 15.1 L5: whatever we take, Node
// takes as exactly the same requests, above all the same second one. We may refuse more; how often and
// why is counted and printed.
//
//   node oracle_http1.js HELPER [SEED [CASES]]     HELPER: the program built from oracle_http1.c
//
// Exit status 0: no difference; 1: differences (each printed with its bytes); 2: usage.
'use strict';
process.noDeprecation = true; // process.binding is how Node's own tests reach the parser
const {spawnSync} = require('child_process');
const http = require('http');

const [helper, seedText = '1', casesText = '4000'] = process.argv.slice(2);
if (!helper) {
  console.error('usage: node oracle_http1.js HELPER [SEED [CASES]]');
  process.exit(2);
}

// ---- streams ----

// Small, fast, repeatable (mulberry32).
function randomOf(seed) {
  let a = seed >>> 0;
  return (n) => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
  };
}

const heads = ['GET / HTTP/1.1', 'POST /p?q=1 HTTP/1.1', 'PUT /x HTTP/1.0', 'HEAD /h HTTP/1.1',
  'OPTIONS * HTTP/1.1', 'GET http://a/abs?x HTTP/1.1', 'DELETE /%41 HTTP/1.1', 'GET /a;b=c HTTP/1.1'];
const fields = ['Host: a', 'host:a', 'Host: a:80', 'Host: b', 'Content-Length: 5', 'Content-Length: 0',
  'content-length:\t5 ', 'Content-Length: 05', 'Content-Length: +5', 'Content-Length: 5, 5',
  'Content-Length: 4611686018427387905', 'Transfer-Encoding: chunked', 'transfer-encoding: CHUNKED',
  'Transfer-Encoding: chunked, chunked', 'Transfer-Encoding: gzip, chunked',
  'Transfer-Encoding: xchunked', 'Transfer-Encoding: chunked,', 'Transfer-Encoding: identity',
  'Transfer-Encoding:', 'Transfer-Encoding : chunked', 'Transfer_Encoding: chunked',
  'Connection: close', 'Connection: keep-alive', 'Connection: close, x', 'Expect: 100-continue',
  'X: y', 'x-1:', 'X: a\tb', ' folded', 'X: \x80\xff', 'Upgrade: h2c', 'Content-Length : 5', 'X y: z', ': v'];
const bodies = ['', 'hello', 'hello', '5\r\nhello\r\n0\r\n\r\n', '0\r\n\r\n',
  '3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n', '0005\r\nhello\r\n00\r\n\r\n', '5\nhello\r\n0\r\n\r\n',
  '0x5\r\nhello\r\n0\r\n\r\n', '5 \r\nhello\r\n0\r\n\r\n', '5\r\nhello0\r\n\r\n', 'ffffffffffffffff\r\nx',
  '10000000000000005\r\nhello\r\n0\r\n\r\n', '0\r\nContent-Length: 5\r\n\r\n', '-5\r\nhello\r\n0\r\n\r\n',
  '5;"\r\nhello\r\n0\r\n\r\n', '5\r\nhello\r\n0\r\nX : y\r\n\r\n'];
const ends = ['\r\n', '\r\n', '\r\n', '\r\n', '\r\n', '\r\n', '\r\n', '\n', '\r', '\r\r\n', '\0\r\n'];
const junk = ['\r', '\n', '\0', ' ', '\t', ':', ',', ';', '\x0b', '\x7f', '\x80', '#', 'A', '0', '\r\n'];

function message(random) {
  const pick = (list) => list[random(list.length)];
  const usual = ['Host: a'];
  // Half of the messages have a framing that fits, or too little would be accepted to compare.
  const plan = random(4);
  let body = pick(bodies);
  if (plan === 0) [body] = ['hello', usual.push('Content-Length: 5')];
  if (plan === 1) [body] = [bodies[3 + random(4)], usual.push('Transfer-Encoding: chunked')];
  for (let n = random(3); n > 0; n--) usual.splice(random(usual.length + 1), 0, pick(fields));
  const end = () => (random(30) === 0 ? pick(ends) : '\r\n');
  return pick(heads) + end() + usual.map((line) => line + end()).join('') + end() + body;
}

function mutate(text, random) {
  const at = random(text.length + 1);
  const piece = junk[random(junk.length)];
  switch (random(3)) {
    case 0: return text.slice(0, at) + piece + text.slice(at);
    case 1: return text.slice(0, at) + piece + text.slice(at + 1);
    default: return text.slice(0, at) + text.slice(at + 1);
  }
}

function streams(seed, cases) {
  const random = randomOf(seed);
  const list = [];
  for (let i = 0; i < cases; i++) {
    let text = '';
    for (let n = 1 + random(3); n > 0; n--) text += message(random);
    for (let n = random(3); n > 0; n--) text = mutate(text, random);
    list.push(Buffer.from(text, 'latin1'));
  }
  return list;
}

// ---- ours ----

function ours(list) {
  const input = Buffer.concat(list.flatMap((stream) => {
    const prefix = Buffer.alloc(4);
    prefix.writeUInt32BE(stream.length);
    return [prefix, stream];
  }));
  const run = spawnSync(helper, [], {input, maxBuffer: 1 << 30});
  if (run.status !== 0) throw new Error(`${helper}: status ${run.status} ${run.stderr}`);
  const lines = run.stdout.toString('latin1').trimEnd().split('\n');
  if (lines.length !== list.length) throw new Error(`${lines.length} answers for ${list.length} streams`);
  const text = (hex) => Buffer.from(hex, 'hex').toString('latin1');
  return lines.map((line) => {
    const parsed = JSON.parse(line);
    parsed.requests = parsed.requests.map((r) => ({
      method: text(r.method), target: text(r.target), fields: r.fields.map(text), body: text(r.body)}));
    return parsed;
  });
}

// ---- Node's ----

// The parser behind http.Server, driven directly: through a server, an error in a second request tears
// down the first before it is told.
const {HTTPParser, methods, allMethods} = process.binding('http_parser');

function nodes(stream) {
  const requests = [];
  const parser = new HTTPParser();
  let current = null;
  let early = [];
  let earlyUrl = '';
  parser.initialize(HTTPParser.REQUEST, {}, 65536, 0);
  // Trailers, and fields beyond the first 32; after either the URL comes this way too.
  parser[HTTPParser.kOnHeaders] = (fields, url) => { early = early.concat(fields); earlyUrl = url; };
  parser[HTTPParser.kOnHeadersComplete] = (major, minor, fields, method, url) => {
    const name = (allMethods || methods)[method];
    current = {method: name, target: reduced(name, url === undefined ? earlyUrl : url), fields: early.concat(fields || []), body: ''};
    early = [];
    return 0;
  };
  parser[HTTPParser.kOnBody] = (data, offset, length) => {
    const piece = offset === undefined ? data : data.subarray(offset, offset + length);
    current.body += piece.toString('latin1');
  };
  parser[HTTPParser.kOnMessageComplete] = () => {
    requests.push(current);
    early = []; // trailers
  };
  const result = parser.execute(stream);
  let end = result instanceof Error ? result.code : 'clean';
  if (end === 'clean') {
    const last = parser.finish();
    if (last instanceof Error) end = last.code;
  }
  parser.close();
  return {requests, end};
}

// RFC 9112 3.2.2: our parser hands on the origin form.
function reduced(method, url) {
  const match = /^https?:\/\/[^/?]*(.*)$/i.exec(url);
  if (!match) return url;
  if (match[1] === '') return method === 'OPTIONS' ? '*' : '/';
  return match[1].startsWith('/') ? match[1] : `/${match[1]}`;
}

// ---- comparison ----

const known = [
  {name: 'a method Node does not know (any token is one, RFC 9110 9.1)',
    holds: (mine) => !http.METHODS.includes(mine.method)},
  {name: 'a Content-Length trailer, which we drop (gateway.md 7.1) and Node refuses',
    holds: (mine, theirs, text) => /CONTENT_LENGTH/.test(theirs.end) && /\r\n0+\r\n[^]*content-length/i.test(text)},
  {name: 'a tab behind a Content-Length, OWS by RFC 9110 5.6.3, which Node refuses',
    holds: (mine, theirs, text) => /CONTENT_LENGTH/.test(theirs.end) && /content-length:[^\r]*\t\r/i.test(text)},
  {name: 'blanks in a chunk extension, which RFC 9110 5.6.3 has recipients parse and Node refuses',
    holds: (mine, theirs, text) => /STRICT|CHUNK/.test(theirs.end) && /\n[0-9a-f]+([ \t]|;[^\r]*[ \t])/i.test(text)},
];

const same = (a, b) => a.method === b.method && a.target === b.target && a.body === b.body &&
  a.fields.length === b.fields.length && a.fields.every((text, i) => text === b.fields[i]);

function main() {
  const list = streams(Number(seedText), Number(casesText));
  const mine = ours(list);
  const counts = {taken: 0, second: 0, refusedByBoth: 0};
  const stricter = new Map();
  const excused = new Map();
  const count = (map, key) => map.set(key, (map.get(key) || 0) + 1);
  let differences = 0;
  for (let i = 0; i < list.length; i++) {
    const theirs = nodes(list[i]);
    let isExcused = false;
    for (let r = 0; r < mine[i].requests.length && !isExcused; r++) {
      const request = mine[i].requests[r];
      if (theirs.requests[r] && same(request, theirs.requests[r])) {
        counts.taken++;
        counts.second += r > 0 ? 1 : 0;
        continue;
      }
      const excuse = known.find((k) => k.holds(request, theirs, list[i].toString('latin1')));
      isExcused = true;
      if (excuse) {
        count(excused, excuse.name);
        continue;
      }
      differences++;
      console.log(`stream ${i}, request ${r}: ${JSON.stringify(list[i].toString('latin1'))}`);
      console.log(`  ours ${JSON.stringify(request)}\n  Node ${JSON.stringify(theirs.requests[r])} ${theirs.end}`);
    }
    if (isExcused) continue;
    if (theirs.requests.length > mine[i].requests.length) {
      if (mine[i].end === 'bad') count(stricter, mine[i].why);
      else if (mine[i].end === 'clean' || mine[i].end === 'cut') {
        differences++;
        console.log(`stream ${i}: Node takes one more: ${JSON.stringify(list[i].toString('latin1'))} ${JSON.stringify(mine[i])} ${JSON.stringify(theirs)}`);
      }
    } else if (mine[i].end === 'bad') {
      counts.refusedByBoth++;
    }
  }
  for (const [why, n] of [...stricter].sort((a, b) => b[1] - a[1])) console.log(`  only we refuse ${n}: ${why}`);
  for (const [name, n] of excused) console.log(`  known difference ${n}: ${name}`);
  console.log(`${list.length} streams, seed ${seedText}: ${counts.taken} requests taken alike (${counts.second} of them behind another), ` +
    `${counts.refusedByBoth} streams refused by both, ${differences} differences`);
  process.exit(differences > 0 || counts.second === 0 ? 1 : 0);
}

main();
