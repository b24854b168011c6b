"""Files for Prometheus and Grafana: what to scrape, what to be woken for, what to look at. Made from tables, no I/O."""
