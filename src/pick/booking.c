/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/pick.h"

bool fl_booking_prefilled(struct fl_booking *booking)
{
    if (booking->state != FL_BOOKING_BOOKED)
        return false;
    booking->state = FL_BOOKING_PREFILLED;
    fl_reservation_prefill_complete(booking->service, fl_bytes_of(booking->id));
    return true;
}

bool fl_booking_free(struct fl_booking *booking, enum fl_free_cause cause)
{
    if (booking->state == FL_BOOKING_EMPTY)
        return false;
    booking->state = FL_BOOKING_EMPTY;
    fl_reservation_free(booking->service, fl_bytes_of(booking->id), cause);
    return true;
}

struct fl_booking fl_booking_take(struct fl_booking *from)
{
    struct fl_booking booking = *from;
    *from = (struct fl_booking){0};
    return booking;
}
