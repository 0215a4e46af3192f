"""The service: trained models over HTTP, and a page to ask them by hand.

It keeps no state: a request holds its whole case, so any number of copies may run side by side.
"""
