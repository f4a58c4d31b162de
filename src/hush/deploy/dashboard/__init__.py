"""Dashboards: live pages, metrics and health endpoints of coordinators and members, from the files of a folder."""
