-- A section of what the server says of itself. In a cluster the server of the store's slot answers. ARGV: prefix, section.
return redis.call('INFO', ARGV[2])
