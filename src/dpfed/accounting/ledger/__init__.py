# SPDX-License-Identifier: Apache-2.0
"""What the releases of a data set have cost, and whether its owner's budget allows more.

Four words, used here and wherever dpfed speaks of budgets:

    account   who may spend: one data set under its owner's name, with the budget that was declared
    entries   the rows that one training of one client has written: one per round and channel
    journal   the file: rows that are only ever added, each with a hash of the one before
    ledger    the whole: it reads the journal, adds up the accounts, and admits or refuses entries

The modules: journal (the file), balance (rows added up), request (what a client asks for),
limits (what is refused whatever it costs), conversions (costs in the terms of a budget), enquiries
(plans that only ask), verification (whether the rows are true), ledger (all of them together),
heads (what others keep of it, so that an older copy in its place is noticed).
"""
