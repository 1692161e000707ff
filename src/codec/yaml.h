/* SPDX-License-Identifier: Apache-2.0 */
/* YAML files (configuration, Kubernetes manifests) as the same tree that JSON gives: a reader of
 * struct fl_json does not care which of the two the user wrote.
 *
 * Read with libyaml's event API, composed here under limits (dependencies.md 3.5). Differences to a
 * JSON doc: all text is copied into the arena, so the input may go; containers have no source text.
 *
 * Plain scalars:  true True TRUE false ...    booleans          yes no on off          strings
 *                 null Null NULL ~ (empty)    null              0777 0x10 +1 .5 .inf   strings
 *                 what JSON calls a number    number            anything quoted        string
 *
 * Refused with line and column: anchors, aliases, tags, merge keys, duplicate keys, keys that are
 * no scalar, more than one document.
 *
 * Pure; blocking only by its size, so not for request paths. */
#ifndef FL_CODEC_YAML_H
#define FL_CODEC_YAML_H

#include "base/bytes.h"
#include "base/error.h"
#include "codec/json.h"

/* dependencies.md 3.5 */
#define FL_YAML_MAX_BYTES ((size_t)8 << 20)
#define FL_YAML_MAX_DEPTH 64
#define FL_YAML_MAX_NODES 500000 /* keys count too */

/* One document; none at all gives null. `doc` is zeroed or was finished; end it with
 * fl_json_fini(). 0, FL_EPROTO, FL_EDEPTH, FL_ELIMIT (bytes or nodes), FL_ENOMEM; then the doc is
 * empty and `err` names line and column, counted from 1. */
int fl_yaml_parse(struct fl_json *doc, struct fl_bytes text, struct fl_error *err);

/* A stream of documents: the root is an array of them. For manifests. Errors as above. */
int fl_yaml_parse_stream(struct fl_json *doc, struct fl_bytes text, struct fl_error *err);

#endif
