"""Words that several tasks share; few and short, so that each is one token."""

# no name starts with A, B, C or D: those letters with a space in front stay free for options
NAMES = (
    *("Emma", "Finn", "Gus", "Hana", "Ivan", "Jane", "Kim", "Leo", "Mia", "Nora"),
    *("Owen", "Pia", "Quinn", "Rosa", "Sam", "Tess", "Uma", "Vera", "Will", "Zoe"),
)

COUNTED = (  # plural, countable
    *("apples", "books", "cards", "coins", "cups", "eggs", "keys", "lamps", "nuts", "pens"),
    *("pears", "pots", "rings", "shells", "stamps", "stones", "toys", "plums", "flowers", "tickets"),
)

HOLDERS = ("boxes", "bags", "baskets", "jars", "trays", "crates")
