"""A parser of HTML pages, for tests of what they show."""

import html.parser


class Page(html.parser.HTMLParser):
    """Parser of a page: its tables row by row, its tags and its links."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self.titles, self.addresses, self.is_cell = [], set(), [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src")]
        self.titles += [value for name, value in attrs if name == "title"]
        if tag == "tr":
            self.rows.append([])
        self.is_cell = tag in ("td", "th")
        if self.is_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.is_cell = False

    def handle_data(self, data):
        if self.is_cell:
            self.rows[-1][-1] += data.strip()

    def cells(self, op):
        """Return the symbols by check in an op's row of the table."""
        heads = next(row for row in self.rows if row[0] == "op")
        return dict(zip(heads[1:], next(row for row in self.rows if row[0] == op)[1:], strict=True))
