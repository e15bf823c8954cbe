"""All-Reduce for clusters that straggle, drop packets, have thin links, and whose peers come and go."""
