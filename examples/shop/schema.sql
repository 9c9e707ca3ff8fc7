-- A shop whose customers follow sellers: who sells what, and who wants to hear of it.
CREATE TABLE follows (
    customer text NOT NULL,
    seller   text NOT NULL,
    PRIMARY KEY (customer, seller)
);

CREATE TABLE offers (
    seller text        NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    title  text        NOT NULL,
    cents  integer     NOT NULL,
    PRIMARY KEY (seller, at)
);

CREATE TABLE reviews (
    seller   text     NOT NULL,
    customer text     NOT NULL,
    stars    smallint NOT NULL CHECK (stars BETWEEN 1 AND 5),
    PRIMARY KEY (seller, customer)
);

INSERT INTO follows VALUES ('ann', 'bob'), ('ann', 'cleo'), ('dan', 'bob');
INSERT INTO offers VALUES
    ('bob', '2026-01-01 09:00Z', 'A kettle', 1500),
    ('cleo', '2026-01-02 09:00Z', 'A lamp', 4200),
    ('eve', '2026-01-03 09:00Z', 'A chair', 9900);
INSERT INTO reviews VALUES ('bob', 'ann', 4), ('bob', 'dan', 2);
