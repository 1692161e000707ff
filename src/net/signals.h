/* SPDX-License-Identifier: Apache-2.0 */
/* Signals as events of a loop: SIGTERM and SIGINT drain, SIGHUP reloads. Several of one number that
 * come together may be told as one. Single loop. */
#ifndef FL_NET_SIGNALS_H
#define FL_NET_SIGNALS_H

#include <stddef.h>

#include "net/loop.h"

#define FL_SIGNALS_MAX 8

struct fl_signals;
/* From now on `signums` do not end the process but call `on_signal` on the loop. Aborts on a number
 * that cannot be caught. */
struct fl_signals *fl_signals_open(struct fl_loop *loop, const int *signums, size_t count,
                                   void (*on_signal)(void *owner, int signum), void *owner);
/* Restores what was before. Also from on_signal. NULL allowed. */
void fl_signals_close(struct fl_signals *signals);

#endif
