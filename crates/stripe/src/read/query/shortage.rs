//! What a query does about pieces that the requested chunks do not complete: it requests other chunks, looks the stripe
//! up again, computes chunks from wide stripes, and reads the durable copy of a cached block.

use std::sync::Arc;

use bytes::Bytes;
use striate_site::SiteError;

use super::{Query, Shortage};
use crate::error::StripeError;
use crate::read::cached::ServedFrom;
use crate::read::gathering::{Piece, StripeRead};
use crate::read::requests::RequestKey;
use crate::table::OpenedStripe;

/// Maximum number of restarts of a stripe's pieces because its record changed.
const MAX_RESTARTS: u32 = 5;

/// What a look-up of a stripe means for its open pieces.
enum Outlook {
    /// They are planned again.
    PlanAgain,
    /// The record is the known one, and no other chunks are left to request.
    Unchanged,
    /// They are lost.
    Lost(StripeError),
}

impl<HandOut: FnMut(usize, Vec<Bytes>, ServedFrom) + Send> Query<'_, HandOut> {
    /// Requests replacements for missing and late chunks, if any exist, until no pieces are to be planned again.
    pub(super) fn request_replacements(&mut self) {
        while self.shortage != Shortage::None {
            let cause = std::mem::replace(&mut self.shortage, Shortage::None);
            self.plan_again(cause);
        }
    }

    /// Plans the pieces again that lack chunks, and looks up the stripes of those that no plan can complete.
    fn plan_again(&mut self, cause: Shortage) {
        let open: Vec<usize> = self.located.open_pieces().collect();
        let is_short = |&piece: &usize| !self.located.for_plan(piece).is_determined();
        let mut short: Vec<usize> = open.into_iter().filter(is_short).collect();
        let (mut plannable, mut hopeless) = (Vec::with_capacity(short.len()), Vec::new());
        for piece in short.drain(..) {
            if !self.can_complete(piece) {
                let opened = &self.located.stripes[self.located.pieces[piece].stripe].stripe;
                if cause == Shortage::Late && opened.record.dropped && self.read_around(piece) {
                    // The first reply wins.
                    continue;
                }
                // Late chunks count again only if the others are too few.
                let Piece { stripe, shape, .. } = &self.located.pieces[piece];
                self.located.stripes[*stripe].await_late(shape);
            }
            match self.can_complete(piece) {
                true => plannable.push(piece),
                false => hopeless.push(piece),
            }
        }
        if !plannable.is_empty()
            && let Some(plan) = self.reads.plan_rest(&self.located, &plannable)
        {
            let requested = self.ask(plan, &plannable);
            self.stats.chunks += requested;
            self.is_more_asked_than_needed = true;
            match cause {
                Shortage::Late => self.stats.hedged_chunks += requested,
                Shortage::Failed | Shortage::None => self.stats.planned_again += plannable.len(),
            }
        }
        hopeless.into_iter().for_each(|piece| self.look_up_again(piece));
    }

    /// Whether the arrived, awaited and available chunks determine a piece.
    fn can_complete(&self, piece: usize) -> bool {
        let query_piece = self.located.for_plan(piece);
        let mut obtainable = query_piece.awaited;
        query_piece.available(&self.reads.can_be_asked()).for_each(|index| {
            obtainable.insert(index);
        });
        query_piece.code.determines(&obtainable, &query_piece.wanted)
    }

    /// Looks up the stripe of a piece that no further request can complete, unless a request in flight still may, or
    /// reads the durable copy that was already found.
    fn look_up_again(&mut self, piece: usize) {
        let piece = &self.located.pieces[piece];
        let (number, stripe) = (piece.stripe, &self.located.stripes[piece.stripe]);
        if !piece.is_open() || stripe.may_complete(&piece.shape) {
            return;
        }
        match stripe.durable.is_some() {
            true => self.fall_back(number),
            false => self.look_up(number),
        }
    }

    /// Looks a stripe up again, or for a cached form the stripe of its durable copy.
    pub(super) fn look_up(&mut self, number: usize) {
        let id = self.located.durable_stripe(number, self.spans);
        let stripe = &mut self.located.stripes[number];
        if !std::mem::replace(&mut stripe.is_looked_up, true) {
            let (table, is_cached) = (&self.reads.shared.table, stripe.stripe.is_cached());
            self.look_ups.push(Box::pin(async move {
                let found = match id {
                    Ok(id) if is_cached => table.open_many(&[id]).await.map(|mut found| found.pop()),
                    Ok(id) => table.find_again(id).await,
                    Err(error) => Err(error),
                };
                (number, found)
            }));
        }
    }

    /// Reports the failed chunks of a stripe as damage, if its record is current.
    pub(super) fn report_damage(&self, number: usize) {
        let stripe = &self.located.stripes[number];
        if !stripe.is_remembered {
            stripe.failures().for_each(|(index, error)| {
                self.reads.shared.damage.report(&stripe.stripe, index, error);
            });
        }
    }

    /// Restarts a stripe's pieces if its record has changed; otherwise gives up those that cannot be completed.
    pub(super) fn take_look_up(
        &mut self,
        number: usize,
        found: Result<Option<Arc<OpenedStripe>>, StripeError>,
    ) {
        let stripe = &mut self.located.stripes[number];
        stripe.is_looked_up = false;
        if stripe.stripe.is_cached() {
            return self.take_durable(number, found);
        }
        match self.outlook(number, found) {
            Outlook::PlanAgain => self.shortage = Shortage::Failed,
            Outlook::Unchanged => self.settle_pieces(number, None),
            Outlook::Lost(error) => self.settle_pieces(number, Some(error)),
        }
    }

    /// Compares the record that a look-up found with the known one, and takes it over if the pieces can start again.
    fn outlook(&mut self, number: usize, found: Result<Option<Arc<OpenedStripe>>, StripeError>) -> Outlook {
        let stripe = &mut self.located.stripes[number];
        let previous = &stripe.stripe;
        match found {
            Ok(Some(current)) if current.row.version == previous.row.version && stripe.is_remembered => {
                stripe.is_remembered = false;
                self.report_damage(number);
                Outlook::PlanAgain
            }
            Err(_) if stripe.is_remembered => {
                // Other chunks may do: the known record still leads to them, or to none.
                stripe.is_remembered = false;
                Outlook::PlanAgain
            }
            Ok(Some(current)) if current.row.version == previous.row.version => Outlook::Unchanged,
            Ok(Some(_)) if stripe.turn == MAX_RESTARTS => Outlook::Lost(StripeError::Busy),
            Ok(Some(current))
                if (current.code.k(), current.record.chunk_len)
                    != (previous.code.k(), previous.record.chunk_len) =>
            {
                // No change re-encodes a stripe under its name.
                let reason = "its shape has changed under a read".to_owned();
                Outlook::Lost(crate::table::inconsistent(previous.id, reason))
            }
            Ok(Some(current)) => {
                stripe.restart(current);
                Outlook::PlanAgain
            }
            Ok(None) => Outlook::Lost(crate::table::gone(previous.id)),
            Err(error) => Outlook::Lost(error),
        }
    }

    /// Settles the open pieces of a stripe: with an error, all are given up. Without one, those that the requests in
    /// flight cannot complete are computed from wide stripes, or given up.
    fn settle_pieces(&mut self, number: usize, error: Option<StripeError>) {
        let open: Vec<usize> = self.located.open_pieces_of(number).collect();
        for piece in open {
            let stripe = &self.located.stripes[number];
            let shape = &self.located.pieces[piece].shape;
            if error.is_none() && !stripe.may_complete(shape) && self.read_around(piece) {
                continue;
            }
            let stripe = &self.located.stripes[number];
            let shape = &self.located.pieces[piece].shape;
            if error.is_some() || !stripe.may_complete(shape) {
                let error =
                    error.clone().unwrap_or_else(|| stripe.unreadable(shape, self.reads.can_be_asked()));
                self.located.pieces[piece].error = Some(error);
                self.open -= 1;
            }
        }
    }

    /// Requests the chunks that a piece wants, and computes those that their sites cannot provide from their wide
    /// stripes. Returns `false` if that is impossible or has already failed.
    fn read_around(&mut self, number: usize) -> bool {
        let piece = &self.located.pieces[number];
        let (stripe_number, columns) = (piece.stripe, piece.shape.columns.clone());
        let stripe = &mut self.located.stripes[stripe_number];
        let Some(detour) = stripe.plan_detour(&piece.shape, &self.reads.can_be_asked()) else { return false };
        let (reads, id, turn) = (self.reads, stripe.stripe.id, stripe.turn);
        let key_of = |position| RequestKey { stripe: stripe_number, position, turn };
        for (index, position) in detour.computed {
            let (key, columns) = (key_of(position), columns.clone());
            self.detours.push(Box::pin(async move { (key, reads.read_around(id, index, columns).await) }));
        }
        self.stats.chunks += detour.requests.len();
        self.has_new_wait |= !detour.requests.is_empty();
        let requests = detour.requests.into_iter();
        self.requests
            .ask(requests.map(|(site, position, range)| (site, vec![(key_of(position), range)])).collect());
        self.stats.planned_again += 1;
        true
    }

    /// Takes computed columns.
    pub(super) fn take_detour(&mut self, key: RequestKey, read: Result<Bytes, StripeError>) {
        let RequestKey { stripe: number, position, turn } = key;
        let stripe = &mut self.located.stripes[number];
        if stripe.turn != turn {
            return;
        }
        self.stats.decoded_bytes += read.as_ref().map_or(0, Bytes::len) as u64;
        let result = read.map_err(|error| SiteError::Unavailable(error.to_string()));
        match stripe.answer(position, result) {
            None => self.complete_pieces_of(number),
            Some(_) => self.shortage = Shortage::Failed,
        }
    }

    /// Takes the durable copy of a cached form. Without one, gives up the pieces that the requests in flight cannot
    /// complete: the others may still come from memory.
    fn take_durable(&mut self, number: usize, found: Result<Option<Arc<OpenedStripe>>, StripeError>) {
        let id = self.located.stripes[number].stripe.id;
        match found.and_then(|durable| durable.ok_or_else(|| crate::table::gone(id))) {
            Ok(durable) => {
                self.located.stripes[number].durable = Some(durable);
                self.fall_back(number);
            }
            Err(error) => self.give_up_hopeless(number, &error),
        }
    }

    /// Gives up the pieces of a cached form that the requests in flight cannot complete.
    fn give_up_hopeless(&mut self, number: usize, error: &StripeError) {
        let open: Vec<usize> = self.located.open_pieces_of(number).collect();
        for piece in open {
            let stripe = &self.located.stripes[number];
            let shape = &self.located.pieces[piece].shape;
            if stripe.may_complete(shape) {
                continue;
            }
            let is_out_of_reach = matches!(error, StripeError::NotInMemory) && !stripe.is_gone();
            let error = if is_out_of_reach {
                stripe.unreadable(shape, self.reads.can_be_asked())
            } else {
                error.clone()
            };
            self.located.pieces[piece].error = Some(error);
            self.open -= 1;
        }
    }

    /// Reads from the durable copy, once it is found, what a cached form lacks when all sites have answered except
    /// late ones. Earlier, it would also read what is on its way from memory.
    pub(super) fn fall_back(&mut self, number: usize) {
        let stripe = &self.located.stripes[number];
        let is_due = stripe.durable.is_some() && !self.requests.awaits(number, &self.located);
        let Some(durable) = self.located.stripes[number].durable.take_if(|_| is_due) else { return };
        match self.located.fall_back(number, StripeRead::new(durable, false), self.spans) {
            Ok((added, replaced)) => {
                self.open = self.open + added - replaced;
                self.shortage = Shortage::Failed;
            }
            Err(error) => self.settle_pieces(number, Some(error)),
        }
    }
}
