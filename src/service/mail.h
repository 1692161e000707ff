/* SPDX-License-Identifier: Apache-2.0 */
/* Mail: the completion of a queued selection on its way to the waiter's executor. Made by whoever
 * decided the ticket (selection/queue.h), posted outside every lock, opened once on the executor's
 * thread. */
#ifndef FL_SERVICE_MAIL_H
#define FL_SERVICE_MAIL_H

#include "fairlead/selection.h"

struct fl_mail {
    struct fl_selection *service;
    struct fl_ticket ticket; /* BOOKED */
    struct fl_waiter waiter;
    struct fl_select_result result; /* of a booking; zeroed with a refusal */
};

/* Takes `result`. */
struct fl_mail *fl_mail_new(struct fl_selection *service, struct fl_ticket ticket,
                            struct fl_waiter waiter, struct fl_select_result result);

#endif
