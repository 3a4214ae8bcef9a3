"""Published ``config.json`` files of the models people ask about most, so that no download is needed."""
