//! How Newp (pages of a news site, the second application of the Pequod paper) is declared: what everything that runs it has in common.

/// A join, by its name: how many votes each author's articles have.
pub const KARMA: [&str; 2] = ["karma", "karma|<author> = count vote|<author>|<id>|<voter>"];

/// Joins, by their names, whose outputs together are the page of an article.
pub const INTERLEAVED: [[&str; 2]; 4] = [
    ["page_article", "page|<author>|<id>|a = copy article|<author>|<id>"],
    ["page_rank", "page|<author>|<id>|r = count vote|<author>|<id>|<voter>"],
    [
        "page_comment",
        "page|<author>|<id>|c|<cid>|<commenter> = copy comment|<author>|<id>|<cid>|<commenter>",
    ],
    [
        "page_karma",
        "page|<author>|<id>|k|<cid>|<commenter> = \
         check comment|<author>|<id>|<cid>|<commenter> copy karma|<commenter>",
    ],
];

/// How many components group the keys of each table.
pub const BOUNDARIES: [(&str, usize); 5] =
    [("article", 1), ("vote", 1), ("comment", 2), ("page", 2), ("karma", 1)];
