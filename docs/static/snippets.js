// The search shows a snippet of each page that it finds; a browser fetches none for files in a folder.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
