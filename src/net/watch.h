/* SPDX-License-Identifier: Apache-2.0 */
/* Tells when a file has a new content: workers, rules, certificates, tokens.
 *
 * The directory is watched, not the file: editors and Kubernetes replace files by renaming (a
 * ConfigMap is a link to ..data/NAME, and ..data is renamed over), which a watch on the old file
 * never sees. A change is told once it has been quiet for FL_WATCH_SETTLE_MS; what does not change
 * the file itself (neighbours, access) is not told. A file may be missing, at first or for a while:
 * its coming is a change, its going is not (stale beats blind). Single loop. */
#ifndef FL_NET_WATCH_H
#define FL_NET_WATCH_H

#include "base/error.h"
#include "net/loop.h"

#define FL_WATCH_SETTLE_MS 200 /* gateway.md 2.2 */
#define FL_WATCH_RETRY_MS 1000 /* while the directory itself is missing */
/* A file that never rests is told after this long all the same. */
#define FL_WATCH_PATIENCE_MS 2000

struct fl_watch;
/* `path` is copied. FL_EIO with a sentence if its directory cannot be watched. */
int fl_watch_open(struct fl_loop *loop, const char *path, void (*on_change)(void *owner),
                  void *owner, struct fl_watch **watch, struct fl_error *err);
/* Also from on_change. NULL allowed. */
void fl_watch_close(struct fl_watch *watch);

#endif
