if phase == 'd' and ends > now then return {'done', since} end
if phase == 'h' and ends > now then return {'held', whole(ends - now)} end
return {'free'}
