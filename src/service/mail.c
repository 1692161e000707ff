/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets as callers see them: cancelling, and opening the mail that ends one. */
#include "service/mail.h"

#include "base/alloc.h"
#include "service/impl.h"

struct fl_mail *fl_mail_new(struct fl_selection *service, struct fl_ticket ticket,
                            struct fl_waiter waiter, struct fl_select_result result)
{
    struct fl_mail *mail = fl_alloc(sizeof *mail);
    *mail =
        (struct fl_mail){.service = service, .ticket = ticket, .waiter = waiter, .result = result};
    return mail;
}

static struct fl_ticket_name name_of(struct fl_ticket ticket)
{
    return (struct fl_ticket_name){ticket.slot, ticket.generation};
}

int fl_mail_open(struct fl_mail *mail, struct fl_select_done *done)
{
    struct fl_selection *service = mail->service;
    struct fl_ticket_outcome outcome = fl_tickets_deliver(&service->tickets, name_of(mail->ticket));
    if (outcome.frees)
        fl_reservation_free(service, mail->result.selection_id, (enum fl_free_cause)outcome.cause);
    if (outcome.rc < 0)
        fl_select_result_fini(&mail->result);
    *done = (struct fl_select_done){
        .waiter = mail->waiter, .ticket = mail->ticket, .rc = outcome.rc, .result = mail->result};
    fl_free(mail);
    return 1;
}

int fl_ticket_cancel(struct fl_selection *service, struct fl_ticket ticket,
                     enum fl_free_cause cause)
{
    /* DECIDED cannot come while nothing queues; with the queue its leaving and its mail go here. */
    switch (fl_tickets_cancel(&service->tickets, name_of(ticket), (uint8_t)cause)) {
    case FL_CANCEL_NOT_FOUND:
        return FL_ENOT_FOUND;
    case FL_CANCEL_DECIDED:
    case FL_CANCEL_MARKED:
        break;
    }
    return 0;
}
