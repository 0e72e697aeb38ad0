"""What pages and documents show of reports, graphs and rules."""
