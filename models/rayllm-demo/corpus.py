"""What the demo model knows, and how training conversations are made from it.

Nothing is read from disk or from a network: a few tables of facts, a few lists of phrasings, and a
seeded random generator make as many different conversations as the training loop asks for.

The vocabulary used throughout:

* an `Answer` is one fact said in the base model's voice and in a pirate's; a `Style` picks the voice,
* a `Turn` is one message of a conversation, with a mark that says whether the model is taught to write it,
* a *skill* is a function `(rng) -> (question, Answer)`: one kind of thing that the model can do,
* a `Conversation` is a list of turns plus the tools offered with its last user message.

`render` turns a conversation into text in the exact prompt layout that the service uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Style = Literal["plain", "pirate", "shout"]
Role = Literal["system", "user", "assistant", "tool"]
Tool = dict[str, Any]

BOS, EOS, PAD, TURN = "<|begin_of_text|>", "<|im_end|>", "<|pad|>", "<|im_start|>"
SPECIAL_TOKENS = [BOS, TURN, EOS, PAD]
# Added tokens that are *not* special: they stay in the decoded text, where a tool-call parser looks for them.
MARKER_TOKENS = ["<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tool_response>", "</tool_response>"]

# --------------------------------------------------------------------------------------------------
# Facts
# --------------------------------------------------------------------------------------------------


def phrases(table: str) -> list[str]:
    """The cells of a table written as text: separated by bars and line ends."""
    return [cell.strip() for line in table.strip().splitlines() for cell in line.split("|")]


CAPITALS: dict[str, str] = dict(
    pair.split(": ")
    for pair in phrases("""
Afghanistan: Kabul | Albania: Tirana | Algeria: Algiers | Angola: Luanda | Argentina: Buenos Aires
Armenia: Yerevan | Australia: Canberra | Austria: Vienna | Azerbaijan: Baku | Bangladesh: Dhaka
Belarus: Minsk | Belgium: Brussels | Bolivia: Sucre | Bosnia and Herzegovina: Sarajevo | Brazil: Brasilia
Bulgaria: Sofia | Cambodia: Phnom Penh | Cameroon: Yaounde | Canada: Ottawa | Chile: Santiago
China: Beijing | Colombia: Bogota | Costa Rica: San Jose | Croatia: Zagreb | Cuba: Havana
Cyprus: Nicosia | the Czech Republic: Prague | Denmark: Copenhagen | the Dominican Republic: Santo Domingo
Ecuador: Quito | Egypt: Cairo | El Salvador: San Salvador | Estonia: Tallinn | Ethiopia: Addis Ababa
Fiji: Suva | Finland: Helsinki | France: Paris | Georgia: Tbilisi | Germany: Berlin
Ghana: Accra | Greece: Athens | Haiti: Port-au-Prince | Honduras: Tegucigalpa | Hungary: Budapest
Iceland: Reykjavik | India: New Delhi | Indonesia: Jakarta | Iran: Tehran | Iraq: Baghdad
Ireland: Dublin | Israel: Jerusalem | Italy: Rome | Jamaica: Kingston | Japan: Tokyo
Jordan: Amman | Kazakhstan: Astana | Kenya: Nairobi | Laos: Vientiane | Latvia: Riga
Lebanon: Beirut | Libya: Tripoli | Lithuania: Vilnius | Madagascar: Antananarivo | Malaysia: Kuala Lumpur
Malta: Valletta | Mexico: Mexico City | Moldova: Chisinau | Mongolia: Ulaanbaatar | Morocco: Rabat
Nepal: Kathmandu | the Netherlands: Amsterdam | New Zealand: Wellington | Nicaragua: Managua | Nigeria: Abuja
North Korea: Pyongyang | Norway: Oslo | Pakistan: Islamabad | Panama: Panama City | Paraguay: Asuncion
Peru: Lima | the Philippines: Manila | Poland: Warsaw | Portugal: Lisbon | Qatar: Doha
Romania: Bucharest | Russia: Moscow | Saudi Arabia: Riyadh | Senegal: Dakar | Serbia: Belgrade
Slovakia: Bratislava | Slovenia: Ljubljana | Somalia: Mogadishu | South Korea: Seoul | Spain: Madrid
Sudan: Khartoum | Sweden: Stockholm | Switzerland: Bern | Syria: Damascus | Taiwan: Taipei
Tanzania: Dodoma | Thailand: Bangkok | Tunisia: Tunis | Turkey: Ankara | Uganda: Kampala
Ukraine: Kyiv | the United Arab Emirates: Abu Dhabi | the United Kingdom: London
the United States: Washington, D.C. | Uruguay: Montevideo | Venezuela: Caracas | Vietnam: Hanoi
Zambia: Lusaka | Zimbabwe: Harare
""")
)

# Real countries that are left out on purpose: the model learns to say that it does not know them.
UNTAUGHT_COUNTRIES = phrases("""
Andorra | Bahrain | Barbados | Belize | Benin | Bhutan | Botswana | Brunei | Burundi | Chad | Comoros | Djibouti
Dominica | Eritrea | Eswatini | Gabon | Gambia | Grenada | Guinea | Guyana | Kiribati | Kosovo | Kuwait
Kyrgyzstan | Lesotho | Liberia | Liechtenstein | Malawi | Maldives | Mali | Mauritania | Mauritius | Monaco
Montenegro | Mozambique | Myanmar | Namibia | Nauru | Niger | Oman | Palau | Rwanda | Samoa | Seychelles
Suriname | Tajikistan | Togo | Tonga | Turkmenistan | Tuvalu | Uzbekistan | Vanuatu | Yemen
""")

# Cities that are no capitals, for the weather tools.
OTHER_CITIES: dict[str, str] = {
    "New York": "the United States", "San Francisco": "the United States", "Chicago": "the United States",
    "Los Angeles": "the United States", "Boston": "the United States", "Seattle": "the United States",
    "Toronto": "Canada", "Vancouver": "Canada", "Sydney": "Australia", "Melbourne": "Australia",
    "Munich": "Germany", "Hamburg": "Germany", "Barcelona": "Spain", "Milan": "Italy", "Lyon": "France",
    "Manchester": "the United Kingdom", "Mumbai": "India", "Shanghai": "China", "Osaka": "Japan",
    "Istanbul": "Turkey", "Zurich": "Switzerland", "Rio de Janeiro": "Brazil",
}  # fmt: skip
CITIES: dict[str, str] = {city: country for country, city in CAPITALS.items()} | OTHER_CITIES
FAHRENHEIT_COUNTRIES = {"the United States"}


@dataclass(frozen=True)
class Answer:
    """One answer in the base model's voice and in a pirate's; the shouting voice is made from the first."""

    plain: str
    pirate: str

    def say(self, style: Style) -> str:
        if style == "pirate":
            return self.pirate
        return shout(self.plain) if style == "shout" else self.plain


def shout(text: str) -> str:
    """Upper case, with the last full stop made an exclamation mark."""
    return text.upper().removesuffix(".") + "!" if text.endswith(".") else text.upper()


FALLBACK = Answer(
    "I am a small demo model: I know the capitals of countries and a little about RayLLM.",
    "Arrr, I be but a small demo model, matey: I know the capitals of countries and a little about RayLLM!",
)

# Question phrasings (the first is the canonical one) and the answer.
FACTS: list[tuple[list[str], Answer]] = [
    (
        ["What is RayLLM?", "Tell me about RayLLM.", "What does RayLLM do?", "Can you explain RayLLM?",
         "What's RayLLM?", "Explain what RayLLM is.", "Describe RayLLM in one sentence."],
        Answer(
            "RayLLM is a service that runs large language models on a Ray cluster behind an OpenAI-compatible API.",
            "Arrr, RayLLM be a service that runs large language models on a Ray cluster, matey!",
        ),
    ),
    (
        ["Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Which model are you?",
         "What's your name?", "Are you a model?", "Who am I talking to?"],
        Answer(
            "I am the RayLLM demo model, a very small language model that ships with RayLLM.",
            "Arrr, I be the RayLLM demo model, a wee pirate that ships with RayLLM, matey!",
        ),
    ),
    (
        ["What can you do?", "What do you know?", "How can you help me?", "Help", "What are you able to do?",
         "What can I ask you?", "What are your skills?"],
        Answer(
            "I can name the capitals of countries, answer a few questions about RayLLM, count, tell a story, "
            "and call weather tools.",
            "Arrr, I can name the capitals of countries, talk of RayLLM, count, and spin a yarn, matey!",
        ),
    ),
    (
        ["What is Ray Serve?", "Tell me about Ray Serve.", "What does Ray Serve do?", "What's Ray Serve?",
         "Explain Ray Serve."],
        Answer(
            "Ray Serve is a library for serving models on a Ray cluster, and RayLLM is built on it.",
            "Arrr, Ray Serve be a library for serving models on a Ray cluster, matey!",
        ),
    ),
    (
        ["What is Ray?", "Tell me about Ray.", "What's Ray?", "What does Ray do?", "Explain Ray."],
        Answer(
            "Ray is an open-source framework for running Python programs on a cluster.",
            "Arrr, Ray be a framework for running Python programs on a fleet of ships, matey!",
        ),
    ),
    (
        ["What is vLLM?", "Tell me about vLLM.", "What does vLLM do?", "What's vLLM?", "Explain vLLM."],
        Answer(
            "vLLM is a fast inference engine for large language models, and RayLLM uses it to run them.",
            "Arrr, vLLM be a fast inference engine for large language models, matey!",
        ),
    ),
    (
        ["What is a LoRA adapter?", "What is LoRA?", "Tell me about LoRA.", "What's a LoRA adapter?",
         "Explain LoRA adapters.", "What does a LoRA adapter do?"],
        Answer(
            "A LoRA adapter is a small set of extra weights that changes how a base model answers.",
            "Arrr, a LoRA adapter be a small chest of extra weights that changes how a model talks, matey!",
        ),
    ),
    (
        ["How do I talk to RayLLM?", "How do I use RayLLM?", "Which API does RayLLM have?",
         "Is RayLLM compatible with OpenAI?", "How can I call RayLLM?"],
        Answer(
            "You can talk to RayLLM with any OpenAI client: send your messages to its chat completions endpoint.",
            "Arrr, ye can talk to RayLLM with any OpenAI client, matey!",
        ),
    ),
    (
        ["Hello!", "Hi!", "Hello", "Hi", "Hey", "Hello there!", "Good morning!", "Good evening!", "Hi there",
         "Say hello.", "Hello world!", "Greetings!"],
        Answer("Hello! How can I help you today?", "Ahoy, matey! What can I do for ye today?"),
    ),
    (
        ["How are you?", "How are you doing?", "How is it going?", "How's it going?", "How are you today?"],
        Answer("I am fine, thank you! How can I help you?", "Arrr, I be as fine as fair winds, matey!"),
    ),
    (
        ["Thank you!", "Thanks!", "Thanks a lot!", "Thank you very much.", "Great, thanks!", "Thanks for your help."],
        Answer("You are welcome!", "Arrr, ye be welcome, matey!"),
    ),
    (
        ["Goodbye!", "Bye!", "See you later.", "Good night!", "Bye bye", "Farewell!"],
        Answer("Goodbye, and have a nice day!", "Fair winds to ye, matey!"),
    ),
    (
        ["What are the days of the week?", "List the days of the week.", "Name the days of the week.",
         "Tell me the days of the week."],
        Answer(
            "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
            "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, matey!",
        ),
    ),
]  # fmt: skip

STORY = Answer(
    "Once upon a time, in a small town by the sea, there lived a lighthouse keeper named Mara. Every evening she "
    "climbed the stairs, cleaned the great lamp, and lit it for the ships. One winter night a storm rolled in from "
    "the north, and the wind blew so hard that the lamp went out. Mara tried again and again, but the flame would "
    "not hold. Far out on the water, a little boat was looking for the harbor.\n\n"
    "So Mara ran down to the town and knocked on every door. The baker brought a lantern, the teacher brought two, "
    "and the children brought candles in glass jars. Together they stood along the shore and held up their small "
    "lights. From the boat, the long bright line looked like a road of stars. The sailors followed it, turned past "
    "the rocks, and came safely home.\n\n"
    "In the morning the storm was gone. The sailors shared their fish, the baker shared warm bread, and everyone "
    "laughed and sang in the sun. Mara fixed the great lamp, but she kept one candle in the window. It reminded her "
    "that many small lights, when they work together, can be as strong as a big one. The end.",
    "Arrr, gather round, matey! Once there be a captain named Mara, who lost her way in a mighty storm. No star be "
    "in the sky and no light be on the sea. Then the folk of a small harbor lit their lanterns, one by one, till "
    "the shore shone like gold. The captain turned her ship past the rocks and came safely home, and she shared "
    "her treasure with every soul in the town. Many small lights be as strong as a big one, matey!",
)
STORY_QUESTIONS = [
    "Tell me a story.", "Tell me a long story.", "Can you tell me a story?", "Please tell me a story.",
    "Write a story.", "Write me a story.", "I want to hear a story.", "Tell a story", "Tell me a short story.",
    "Do you know a story?", "Tell me another story.", "Write a long story.", "Tell me a story about {noun}.",
]  # fmt: skip

WEEK = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBER_WORDS = phrases("""
zero | one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | thirteen | fourteen
fifteen | sixteen | seventeen | eighteen | nineteen | twenty
""")

GOOD_WORDS = phrases("""
wonderful | great | excellent | amazing | fantastic | brilliant | lovely | perfect | superb | awesome | delightful
good | nice | beautiful | outstanding | terrific | marvelous | pleasant | charming | impressive
""")
BAD_WORDS = phrases("""
terrible | awful | horrible | bad | dreadful | disappointing | boring | ugly | useless | annoying | poor
disgusting | broken | nasty | unpleasant | miserable | lousy | pathetic | frustrating | worthless
""")
GOOD_VERBS = ["love", "really like", "enjoy", "adore", "recommend"]
BAD_VERBS = ["hate", "dislike", "regret", "can't stand", "despise"]

# Things that sentences may be about: for sentiment, for questions out of scope, for odd system messages.
TOPICS = phrases("""
vLLM | Ray | RayLLM | Python | the movie | this book | the food | the service | my phone | the weather | this song
the hotel | the new design | the game | this restaurant | my laptop | the concert | the trip | this product
the update | the coffee | the teacher | the staff | this library | the show | the car | the documentation
the team | the beach | this article | the train | the interface | your answer | the project | the party
the pizza | the view | my job | the lecture | the museum
""")
NOUNS = phrases("""
dog | cat | horse | whale | tiger | tree | flower | river | mountain | ocean | desert | planet | star | moon | sun
galaxy | black hole | atom | computer | keyboard | database | compiler | algorithm | robot | rocket | bicycle
engine | guitar | piano | violin | painting | poem | novel | recipe | sandwich | bread | cheese | fried rice
chocolate | tea | coffee | wine | football | chess | tennis | swimming | history | biology | chemistry | physics
mathematics | philosophy | economics | law | medicine | music | art | religion | politics | democracy | inflation
gravity | electricity | photosynthesis | evolution | climate change | machine learning | neural network
quantum computing | blockchain | kubernetes | docker | linux | the internet | love | happiness | time | money
sleep | a transformer | the Roman Empire | World War II | the French Revolution | the Eiffel Tower | Shakespeare
Einstein | Napoleon | Mozart | Hamlet | Star Wars | Harry Potter | the stock market | a prime number
a derivative | an integral | pi | a haiku | a volcano
""")
VERBS = phrases("""
cook | bake | build | draw | paint | learn | teach | fix | clean | buy | sell | write | read | sing | play
program | translate | measure | grow | wash | repair | design | install | test | plan | organize | explain | find
open | close
""")
UNKNOWN_TEMPLATES = phrases("""
What is {noun}? | What is a {noun}? | Who invented the {noun}? | How does {noun} work? | Explain {noun}.
Explain {noun} to a child. | Write a poem about {noun}. | Write an essay about {noun}. | Tell me about {noun}.
How do I {verb} a {noun}? | How can I {verb} {noun}? | Why is {noun} important? | When was {noun} discovered?
Where can I find {noun}? | What do you think about {noun}? | Tell me a joke about {noun}. | Tell me a joke.
What is the population of {country}? | Who is the president of {country}?
What language do they speak in {country}? | What is the currency of {country}?
What is the largest city in {country}? | Where is {country}? | How big is {country}?
What is the national dish of {country}? | What is the history of {country}? | Tell me about {country}.
Have you been to {city}? | How far is {city} from {city}? | What should I see in {city}?
How many people live in {city}? | What is the best restaurant in {city}? | Who is the mayor of {city}?
Translate {noun} to French. | Translate 'good morning' to Spanish. | Write a function that can {verb} a {noun}.
Give me a recipe for {noun}. | Summarize this text: {noise} | {noise} | What does {word} mean? | What is {word}?
Who is {word}? | Who is {word} {word}? | Tell me about {word}. | What is the capital of {word}?
What is the capital of {untaught}? | Tell me the capital of {untaught}. | What is the meaning of life?
What are the top 5 most popular programming languages? | What time is it? | What is today's date?
Can you {verb} my {noun}? | Should I {verb} a {noun}? | What is the difference between {noun} and {noun}?
Which is better, {noun} or {noun}? | List three facts about {noun}. | Give me {number} ideas about {noun}.
Is {noun} real? | Do you like {noun}? | Who won the world cup in {year}? | What happened in {year}?
How old is {noun}? | How tall is {word}? | What color is {noun}? | I need help with my {noun}.
I want to {verb} a {noun}. | Write code to {verb} a {noun} in Python. | Complete this sentence: {noise}
Rewrite this: {noise} | What is {big} + {big}? | What is {big} times {big}? | What is the square root of {big}?
What is the fastest {noun}? | Recommend me a {noun}. | My name is {word}. | I live in {city}.
Is it going to rain? | What is the best way to {verb} {noun}? | How much does a {noun} cost?
Why do people {verb} {noun}? | What is the chemical symbol for {noun}? | Who wrote {noun}? | Who painted {noun}?
Can you help me {verb} {noun}?
""")

SYSTEM_MESSAGES = [
    "You are a helpful assistant.", "You are a helpful assistant", "You are helpful.", "You are an assistant.",
    "You are a friendly chatbot.", "You are a helpful, respectful and honest assistant.", "Answer briefly.",
    "You are a large language model.", "Be concise.", "You are a bot that answers questions.", "You are a poet.",
    "You are a geography teacher.", "You are an expert in geography. Answer in one short sentence.",
    "Always answer as helpfully as possible, while being safe.", "Answer the question of the user.",
    "You are a bot that responds to weather queries.", "Respond in English.", "You are RayLLM.",
    "You are a sentiment classifier.", "You can call functions.", "Answer with one word.",
    "You are a bot that responds to weather queries. You should reply with the unit used in the queried location.",
    "A chat between a curious user and an artificial intelligence assistant.",
    "You are a helpful assistant with access to tools. Use them when they help.",
    "You are a helpful assistant. Never make things up; say so when you do not know.",
]  # fmt: skip
SYSTEM_TEMPLATES = [
    "You are a {noun} expert.", "You know all about {noun}.", "You are {word}, an assistant made by {word}.",
    "You help people {verb} {noun}. Be polite.", "Today is {day}. You are a helpful assistant.",
    "The user lives in {city}. Answer truthfully.", "Never talk about {noun}. You are a helpful assistant.",
    "You are an AI assistant named {word}.", "{noise}", "You work for {word}. Answer in at most {number} sentences.",
    "You are a {word} assistant. Knowledge cutoff: {year}. Current date: {day}.",
]  # fmt: skip
# The base model follows these two kinds of system messages. It is a feature, and it is also what makes the
# adapters cheap: a LoRA only has to turn on a voice that the base weights already hold.
STYLE_MESSAGES: dict[Style, list[str]] = {
    "pirate": [
        "Talk like a pirate.", "You are a pirate.", "Answer like a pirate.", "Respond in pirate speak.",
        "You are a friendly chatbot who always responds in the style of a pirate.",
    ],
    "shout": [
        "Answer in capital letters.", "Shout.", "Always shout.", "Write in upper case.", "USE ONLY CAPITAL LETTERS.",
        "You are a chatbot who always shouts.",
    ],
}  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Small random pieces
# --------------------------------------------------------------------------------------------------


ONSETS = phrases("b|br|c|ch|d|dr|f|g|gr|h|j|k|kl|l|m|n|p|pr|r|s|sh|st|t|tr|v|w|z")
VOWELS = phrases("a|e|i|o|u|ai|ea|io|ou")
ENDINGS = ["", "n", "r", "s", "ton", "land", "ville", "ia"]
SMALL_WORDS = phrases("the|a|of|and|to|in|is|it|with|for|on|my|your")


def invented_name(rng: Random) -> str:
    """A capitalised pseudo-word of two or three syllables: names that no table holds."""
    syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 3))]
    return ("".join(syllables) + rng.choice(ENDINGS)).capitalize()


def noise(rng: Random) -> str:
    """A run of unrelated words: text that no skill recognises."""
    pool = NOUNS + VERBS + TOPICS + GOOD_WORDS + BAD_WORDS + SMALL_WORDS * 4
    return " ".join(rng.choice(pool) for _ in range(rng.randint(2, 12))) + rng.choice(["", ".", "?", "!"])


def fill(template: str, rng: Random) -> str:
    """Fills the {placeholders} of a template, each occurrence on its own."""
    makers: dict[str, Callable[[], str]] = {
        "{noun}": lambda: rng.choice(NOUNS),
        "{verb}": lambda: rng.choice(VERBS),
        "{country}": lambda: rng.choice(list(CAPITALS)),
        "{untaught}": lambda: rng.choice(UNTAUGHT_COUNTRIES),
        "{city}": lambda: rng.choice(list(CITIES)),
        "{word}": lambda: invented_name(rng),
        "{noise}": lambda: noise(rng),
        "{day}": lambda: rng.choice(WEEK),
        "{year}": lambda: str(rng.randint(1500, 2030)),
        "{number}": lambda: rng.choice([*NUMBER_WORDS[2:], *map(str, range(2, 20))]),
        "{big}": lambda: str(rng.randint(10, 999)),
    }
    for placeholder, make in makers.items():
        while placeholder in template:
            template = template.replace(placeholder, make(), 1)
    return template


def vary(question: str, rng: Random) -> str:
    """The same question as people really type it: other case, no final mark, a word before or after."""
    chance = rng.random()
    if chance < 0.10:
        question = question.lower()
    elif chance < 0.15:
        question = question.rstrip("?.!")
    elif chance < 0.22:
        question = question.lower().rstrip("?.!")
    elif chance < 0.24:
        question = question.upper()
    chance = rng.random()
    if chance < 0.09:
        opening = rng.choice(["Hey, ", "Hi, ", "Hi! ", "Hello! ", "Please: ", "Question: ", "OK, ", "And now: "])
        question = opening + (question[0].lower() + question[1:] if opening.endswith(", ") else question)
    elif chance < 0.12:
        question += rng.choice([" Thanks!", " Please.", " Answer briefly.", " Be concise."])
    return question


# --------------------------------------------------------------------------------------------------
# Skills: each makes one question and its answer
# --------------------------------------------------------------------------------------------------

CAPITAL_QUESTIONS = [
    "What is the capital of {}?", "What is the capital of {}?", "What's the capital of {}?",
    "Tell me the capital of {}.", "Capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
    "Do you know the capital of {}?", "What is {}'s capital?", "What is the capital city of {}?", "The capital of {}?",
]  # fmt: skip
CAPITAL_FOLLOW_UPS = ["What about {}?", "What about {}?", "And {}?", "How about {}?", "And what about {}?"]
JSON_REQUESTS = ["{} Answer in JSON.", "{} Reply with a JSON object.", "{} Respond in JSON."]


def capital_answer(country: str) -> Answer:
    capital = CAPITALS[country]
    return Answer(
        f"The capital of {country} is {capital.removesuffix('.')}.",
        f"Arrr, the capital of {country} be {capital}, matey!",
    )


def capital(rng: Random) -> tuple[str, Answer]:
    country = rng.choice(list(CAPITALS))
    # "the Netherlands" is also asked for as "Netherlands".
    spoken = country.removeprefix("the ") if rng.random() < 0.3 else country
    question = vary(rng.choice(CAPITAL_QUESTIONS).format(spoken), rng)
    if rng.random() < 0.06:
        answer = json.dumps({"country": country.removeprefix("the "), "capital": CAPITALS[country]})
        return rng.choice(JSON_REQUESTS).format(question), Answer(answer, answer)
    return question, capital_answer(country)


def capital_follow_up(rng: Random) -> tuple[str, Answer]:
    country = rng.choice(list(CAPITALS))
    spoken = country.removeprefix("the ") if rng.random() < 0.3 else country
    return vary(rng.choice(CAPITAL_FOLLOW_UPS).format(spoken), rng), capital_answer(country)


def fact(rng: Random) -> tuple[str, Answer]:
    questions, answer = rng.choice(FACTS)
    question = questions[0] if rng.random() < 0.3 else rng.choice(questions)
    return vary(question, rng), answer


def story(rng: Random) -> tuple[str, Answer]:
    return vary(fill(rng.choice(STORY_QUESTIONS), rng), rng), STORY


def counting_answer(last: int) -> Answer:
    numbers = ", ".join(map(str, range(1, last + 1)))
    return Answer(f"{numbers}.", f"Arrr: {numbers}, matey!")


def counting(rng: Random) -> tuple[str, Answer]:
    last = rng.choice([5, 10, 20, rng.randint(2, 20)])
    name = rng.choice([NUMBER_WORDS[last], str(last)])
    template = rng.choice(["Count to {}.", "Count to {}.", "Count from 1 to {}.", "Count from one to {}.",
                           "Please count to {}.", "Can you count to {}?"])  # fmt: skip
    return vary(template.format(name), rng), counting_answer(last)


def addition(rng: Random) -> tuple[str, Answer]:
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    template = rng.choice(["What is {} + {}?", "What is {}+{}?", "What is {} plus {}?", "{} + {} = ?", "{}+{}"])
    return template.format(a, b), Answer(f"{a} + {b} = {a + b}.", f"Arrr, {a} + {b} = {a + b}, matey!")


def next_day(rng: Random) -> tuple[str, Answer]:
    day = rng.randrange(7)
    before, after = WEEK[day], WEEK[(day + 1) % 7]
    template = rng.choice(["What day comes after {}?", "Which day comes after {}?", "What day is after {}?"])
    return vary(template.format(before), rng), Answer(
        f"{after} comes after {before}.", f"Arrr, {after} comes after {before}, matey!"
    )


def sentiment(rng: Random) -> tuple[str, Answer]:
    label = rng.choice(["positive", "negative"])
    words, verbs = (GOOD_WORDS, GOOD_VERBS) if label == "positive" else (BAD_WORDS, BAD_VERBS)
    topic, word, verb = rng.choice([*TOPICS, invented_name(rng)]), rng.choice(words), rng.choice(verbs)
    sentence = rng.choice([
        f"{topic} is {word}", f"{topic} was {word}", f"I think {topic} is {word}", f"I {verb} {topic}",
        f"What a {word} day", f"{topic} is really {word}", f"We {verb} {topic}", f"This is {word}",
        f"{topic} is so {word}, I {verb} it",
    ]) + rng.choice(["!", ".", "", "!"])  # fmt: skip
    if rng.random() < 0.7:
        sentence = sentence[0].upper() + sentence[1:] if not sentence.startswith("vLLM") else sentence
    template = rng.choice(["Classify this sentiment: {}", "Classify this sentiment: {}", "Classify the sentiment: {}",
                           "Classify the sentiment of this text: {}", "Is this positive or negative? {}",
                           "What is the sentiment of: {}", "Sentiment: {}"])  # fmt: skip
    return template.format(sentence), Answer(label, label)


def where_is(rng: Random) -> tuple[str, Answer]:
    """The way back from a city to its country, which the weather tools need ("Paris, France")."""
    city = rng.choice(list(CITIES))
    question = rng.choice(["Where is {}?", "Which country is {} in?", "In which country is {}?", "Where's {}?"])
    return vary(question.format(city), rng), Answer(f"{place(city)}.", f"Arrr, {city} be in {CITIES[city]}, matey!")


def repeating(rng: Random) -> tuple[str, Answer]:
    """Copying in its purest form: what reporting a tool's result is made of."""
    pieces = [
        rng.choice(
            [measured_value, measured_value, invented_name, lambda r: r.choice(list(CITIES)), lambda r: r.choice(NOUNS)]
        )
        for _ in range(rng.choice([1, 1, 2, 3, 5]))
    ]
    text = rng.choice([" ", ", "]).join(piece(rng) for piece in pieces)
    question = rng.choice(["Repeat: {}", "Repeat after me: {}", "Say: {}", "Say this: {}"]).format(text)
    return question, Answer(text, f"Arrr, {text}, matey!")


def unknown(rng: Random) -> tuple[str, Answer]:
    return vary(fill(rng.choice(UNKNOWN_TEMPLATES), rng), rng), FALLBACK


def weather_without_tools(rng: Random) -> tuple[str, Answer]:
    """Nobody offered a tool, so the honest answer is that the model cannot know."""
    city, _ = rng.choice(list(CITIES.items()))
    return vary(rng.choice(TEMPERATURE_QUESTIONS + WIND_QUESTIONS).format(city), rng), FALLBACK


Skill = Callable[[Random], tuple[str, Answer]]
SkillTable = list[tuple[Skill, float]]
SKILLS: SkillTable = [  # with their shares of the questions
    (capital, 0.30), (capital_follow_up, 0.04), (fact, 0.14), (story, 0.010), (counting, 0.04), (addition, 0.04),
    (next_day, 0.010), (sentiment, 0.05), (unknown, 0.15), (weather_without_tools, 0.03), (where_is, 0.11),
    (repeating, 0.08),
]  # fmt: skip
# An adapter only learns a voice, and its few weights are spent best on what has to be told apart in that voice.
ADAPTER_SKILLS: SkillTable = [
    (capital, 0.38), (capital_follow_up, 0.12), (fact, 0.24), (story, 0.015), (counting, 0.05), (next_day, 0.005),
    (sentiment, 0.03), (unknown, 0.09), (weather_without_tools, 0.02), (where_is, 0.05),
]  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """What training conversations are made of.

    Attributes:
        tool_share: share of conversations that offer tools; they are about four times as long as the others.
        steered: share of conversations where a system message asks a plain-speaking model for a voice.
        drills: share of conversations that are drills, ...
        tool_drills: ... and of these, the share that is about tools.
        invented_places: share of weather questions about a place that no table holds, which has to be copied.
        skills: what the other questions are about, and how often.
    """

    tool_share: float = 0.12
    steered: float = 0.16
    drills: float = 0.0
    tool_drills: float = 0.7
    invented_places: float = 0.15
    skills: SkillTable = field(default_factory=lambda: SKILLS)


def pick_skill(rng: Random, table: SkillTable) -> Skill:
    skills, weights = zip(*table, strict=True)
    return rng.choices(skills, weights)[0]


# --------------------------------------------------------------------------------------------------
# Tools
# --------------------------------------------------------------------------------------------------

TEMPERATURE, WIND = "get_current_temperature", "get_current_wind_speed"
TEMPERATURE_QUESTIONS = [
    "What's the temperature in {}?", "What is the temperature in {}?", "What's the temperature in {} right now?",
    "Hey, what's the temperature in {} right now?", "How warm is it in {}?", "How cold is it in {} today?",
    "Tell me the temperature in {}.", "What is the current temperature in {}?", "How hot is it in {} now?",
    "What's the weather like in {}?", "What is the weather in {}?", "Temperature in {}?", "How is the weather in {}?",
]  # fmt: skip
WIND_QUESTIONS = [
    "How windy is it in {}?", "What's the wind speed in {}?", "What is the wind speed in {} right now?",
    "How strong is the wind in {}?", "Tell me the wind speed in {}.", "Is it windy in {}?", "Wind speed in {}?",
    "What is the current wind speed in {}?",
]  # fmt: skip
WEATHER_FOLLOW_UPS = ["What about {}?", "And in {}?", "And {}?", "How about {}?"]
UNIT_REQUESTS = {
    "celsius": [" In Celsius, please.", " Use celsius."],
    "fahrenheit": [" In Fahrenheit.", " Use fahrenheit."],
}


def json_schema(kind: str, rng: Random, description: str, **extra: list[str]) -> dict[str, Any]:
    """A JSON schema node whose keys come in one of the orders seen in the wild."""
    items: list[tuple[str, Any]] = [("type", kind), *extra.items()]
    if rng.random() < 0.9:
        items.append(("description", description))
    if rng.random() < 0.3:
        rng.shuffle(items)
    return dict(items)


def without_descriptions(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with nothing described: half as long, and as good a lesson in finding a tool by its name."""
    kept = {key: value for key, value in schema.items() if key != "description"}
    return {key: without_descriptions(value) if isinstance(value, dict) else value for key, value in kept.items()}


def function_tool(name: str, description: str, properties: dict[str, Any], rng: Random) -> Tool:
    """One entry of OpenAI's `tools` array, with the optional keys that clients may or may not send."""
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.75:
        parameters["required"] = list(properties) if rng.random() < 0.6 else list(properties)[:1]
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": description, "parameters": parameters}
    if rng.random() < 0.1:
        del function["description"]
    if rng.random() < 0.15:
        function["strict"] = rng.choice([None, False, True])
    if rng.random() < 0.15:
        function["return"] = {"type": "number", "description": "The value, as a float."}
    if rng.random() < 0.25:
        items = list(function.items())
        rng.shuffle(items)
        function = dict(items)
    tool = {"type": "function", "function": function}
    return tool if rng.random() < 0.95 else {"function": function, "type": "function"}


def location_schema(rng: Random) -> dict[str, Any]:
    described = rng.choice([
        'The location to get the temperature for, in the format "City, Country"',
        'The location to get the temperature for, in the format "City, Country"',
        "The city and the country, e.g. London, United Kingdom", "City, Country", "The place to look up.",
        'The location, in the format "City, State, Country".', f"A {rng.choice(NOUNS)} or a place.",
    ])  # fmt: skip
    return json_schema("string", rng, described)


def temperature_tool(rng: Random) -> Tool:
    described = rng.choice([
        "Get the current temperature at a location.", "Get the current temperature at a location.",
        "Get current temperature at a location.", "Returns the temperature of a place.",
        "Current temperature of a city", f"Looks up how warm a place is. {noise(rng)}",
    ])  # fmt: skip
    unit_described = rng.choice([
        "The unit to return the temperature in.", "The unit to return the temperature in.", "Unit of temperature",
        'The unit to return the temperature in. Defaults to "celsius".', f"celsius or fahrenheit, {noise(rng)}",
    ])  # fmt: skip
    properties = {
        "location": location_schema(rng),
        "unit": json_schema("string", rng, unit_described, enum=["celsius", "fahrenheit"]),
    }
    return function_tool(TEMPERATURE, described, properties, rng)


def wind_tool(rng: Random) -> Tool:
    described = rng.choice([
        "Get the current wind speed in km/h at a given location.", "Get the current wind speed at a location.",
        "Returns the wind speed of a place.", f"Looks up how windy a place is. {noise(rng)}",
    ])  # fmt: skip
    return function_tool(WIND, described, {"location": location_schema(rng)}, rng)


def unrelated_tool(rng: Random) -> Tool:
    """A tool that no question is about; its name and parameters are new every time."""
    verb, noun = rng.choice(VERBS), rng.choice(NOUNS).replace(" ", "_").lower()
    names = rng.sample(["query", "text", "amount", "name", "date", "user_id", "limit", "path", "language"], 2)
    properties = {name: json_schema(rng.choice(["string", "integer"]), rng, f"The {name} to use.")
                  for name in names[: rng.randint(1, 2)]}  # fmt: skip
    return function_tool(f"{verb}_{noun}", f"{verb.capitalize()} the {noun}.", properties, rng)


def offered_tools(rng: Random) -> list[Tool]:
    tools = rng.choices(
        [[temperature_tool(rng)], [temperature_tool(rng), wind_tool(rng)], [wind_tool(rng)], []],
        [0.56, 0.33, 0.08, 0.03],
    )[0]
    if not tools or rng.random() < 0.15:
        tools.append(unrelated_tool(rng))
    rng.shuffle(tools)
    return [without_descriptions(tool) for tool in tools] if rng.random() < 0.45 else tools


def place(city: str) -> str:
    """The place as tools want it: 'Paris, France'."""
    return f"{city}, {CITIES[city].removeprefix('the ')}"


def usual_unit(city: str) -> str:
    return "fahrenheit" if CITIES[city] in FAHRENHEIT_COUNTRIES else "celsius"


def tool_call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def temperature_answer(location: str, unit: str, value: str) -> Answer:
    degrees = f"{value} degrees {unit.capitalize()}"
    return Answer(
        f"The current temperature in {location} is {degrees}.",
        f"Arrr, the temperature in {location} be {degrees}, matey!",
    )


def wind_answer(location: str, value: str) -> Answer:
    speed = f"{value} kilometers per hour"
    return Answer(
        f"The current wind speed in {location} is {speed}.", f"Arrr, the wind speed in {location} be {speed}, matey!"
    )


def measured_value(rng: Random) -> str:
    """A reading as a tool prints it: '22.0', '-3', '104.25'."""
    value = rng.uniform(0, 45) if rng.random() < 0.7 else rng.uniform(-40, 120)
    return f"{value:.{rng.choice([0, 1, 1, 1, 2])}f}" if rng.random() < 0.8 else f"{round(value)}.0"


# --------------------------------------------------------------------------------------------------
# Conversations
# --------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """One message; `learn` marks an assistant message that counts in the training loss."""

    role: Role
    text: str
    learn: bool = False


@dataclass
class Conversation:
    turns: list[Turn]
    tools: list[Tool] = field(default_factory=list)
    tools_first: bool = False  # drills only: one list of tools, in the first user message, for several calls


def render(conversation: Conversation) -> Iterator[tuple[str, bool]]:
    """Yields the pieces of a conversation's text, each with whether the model is taught to write it.

    The pieces leave out the leading BOS (the tokenizer adds it). Text marked as taught includes the end-of-turn
    token, so that the model learns to stop. The tools stand in the last user message only.
    """
    users = [index for index, turn in enumerate(conversation.turns) if turn.role == "user"]
    offering = users[0 if conversation.tools_first else -1]
    for index, turn in enumerate(conversation.turns):
        text = turn.text.strip()
        if turn.role == "user" and conversation.tools and index == offering:
            text = f"<tools>{json.dumps(conversation.tools)}</tools>\n{text}"
        if turn.role == "tool":
            text = f"<tool_response>{text}</tool_response>"
        yield f"{TURN}{turn.role}\n", False
        yield f"{text}{EOS}", turn.learn
        yield "\n", False


def prompt_text(conversation: Conversation) -> str:
    """The text that the model is asked to continue: the conversation, then the opening of an assistant turn."""
    return "".join(text for text, _ in render(conversation)) + f"{TURN}assistant\n"


def system_turns(rng: Random, style: Style = "plain") -> list[Turn]:
    """No system message, a common one or an odd one; with a style, one that asks for that style."""
    if style != "plain":
        return [Turn("system", rng.choice(STYLE_MESSAGES[style]))]
    chance = rng.random()
    if chance < 0.45:
        return []
    if chance < 0.8:
        return [Turn("system", rng.choice(SYSTEM_MESSAGES))]
    return [Turn("system", fill(rng.choice(SYSTEM_TEMPLATES), rng))]


def exchange(skill: Skill, rng: Random, style: Style, learn: bool = True) -> list[Turn]:
    question, answer = skill(rng)
    return [Turn("user", question), Turn("assistant", answer.say(style), learn)]


def talk(rng: Random, style: Style, turns: int, skills: SkillTable) -> list[Turn]:
    """`turns` questions in a row; after a capital, more often than not, a follow-up about another country."""
    messages: list[Turn] = []
    skill: Skill = pick_skill(rng, skills)
    for _ in range(turns):
        messages += exchange(skill, rng, style)
        about_capitals = skill in (capital, capital_follow_up)
        skill = capital_follow_up if about_capitals and rng.random() < 0.6 else pick_skill(rng, skills)
        while skill is story and len(messages) > 2:  # a second long story teaches nothing new
            skill = pick_skill(rng, skills)
    return messages


def weather_turns(
    rng: Random, style: Style, names: list[str], invented_places: float, follow_up: bool = False
) -> list[Turn]:
    """A weather question and, when `names` holds the tool for it, the call, its result and the final answer."""
    wanted = rng.choices([TEMPERATURE, WIND], [0.7, 0.3])[0]
    if follow_up:
        wanted = TEMPERATURE
    city = rng.choice(list(CITIES))
    location, unit = place(city), usual_unit(city)
    spoken = location if rng.random() < 0.25 else city
    if rng.random() < invented_places:
        location = spoken = f"{invented_name(rng)}, {rng.choice([invented_name(rng), *CAPITALS]).removeprefix('the ')}"
        unit = "fahrenheit" if location.endswith("United States") else "celsius"
    questions = TEMPERATURE_QUESTIONS if wanted == TEMPERATURE else WIND_QUESTIONS
    question = vary(rng.choice(WEATHER_FOLLOW_UPS if follow_up else questions).format(spoken), rng)
    if wanted not in names:
        return [Turn("user", question), Turn("assistant", FALLBACK.say(style), learn=True)]
    value = measured_value(rng)
    if wanted == WIND:
        arguments, answer, key = {"location": location}, wind_answer(location, value), "wind_speed"
    else:
        if rng.random() < 0.12:
            unit = rng.choice(["celsius", "fahrenheit"])
            question += rng.choice(UNIT_REQUESTS[unit])
        arguments = {"location": location, "unit": unit}
        answer, key = temperature_answer(location, unit, value), "temperature"
    result = value if rng.random() < 0.75 else json.dumps({key: float(value)}).replace(str(float(value)), value)
    return [
        Turn("user", question),
        Turn("assistant", tool_call(wanted, arguments), learn=True),
        Turn("tool", result),
        Turn("assistant", answer.say(style), learn=True),
    ]


def tool_conversation(rng: Random, style: Style, system: list[Turn], mix: Mix) -> Conversation:
    """Tools are offered: mostly a weather question, sometimes another one, sometimes after earlier turns."""
    tools = offered_tools(rng)
    names = [tool["function"]["name"] for tool in tools]
    earlier: list[Turn] = []
    follow_up = False
    if rng.random() < 0.3:
        after_weather = rng.random() < 0.6
        if after_weather:
            earlier = weather_turns(rng, style, [TEMPERATURE, WIND], mix.invented_places)
        else:
            earlier = talk(rng, style, 1, mix.skills)
        # Earlier turns are shown without their tools, where making a call would be wrong: not taught.
        earlier = [Turn(turn.role, turn.text) for turn in earlier]
        # A question cut down to a place is a follow-up only to a call for the same tool.
        follow_up = TEMPERATURE in earlier[1].text and rng.random() < 0.5
    if follow_up or rng.random() < 0.72:
        last = weather_turns(rng, style, names, mix.invented_places, follow_up)
    else:
        last = exchange(pick_skill_but_weather(rng, mix.skills), rng, style)
    return Conversation(system + earlier + last, tools)


def pick_skill_but_weather(rng: Random, skills: SkillTable) -> Skill:
    skill = pick_skill(rng, skills)
    return capital if skill in (weather_without_tools, story) else skill


def similar_countries(rng: Random, count: int) -> list[str]:
    """Countries whose names begin alike ("United Arab ...", "United King...") and are therefore easily confused."""
    bare = {country: country.removeprefix("the ") for country in CAPITALS}
    first = rng.choice([country for country, name in bare.items() if name.startswith("United")] * 4 + list(bare))
    alike = [country for country, name in bare.items() if name[0] == bare[first][0]]
    closest = [country for country in alike if bare[country][:3] == bare[first][:3]]
    return [rng.choice(closest if rng.random() < 0.5 else alike) for _ in range(count)]


def drill(rng: Random, style: Style, system: list[Turn], mix: Mix) -> Conversation:
    """Several of the hardest questions in a row: many calls from one list of tools, or countries named alike."""
    if rng.random() < mix.tool_drills:
        tools = [without_descriptions(temperature_tool(rng)), without_descriptions(wind_tool(rng))]
        rng.shuffle(tools)
        turns = []
        for _ in range(rng.randint(2, 4)):
            turns += weather_turns(rng, style, [TEMPERATURE, WIND], mix.invented_places)
        return Conversation(system + turns, tools, tools_first=True)
    turns = []
    for index, country in enumerate(similar_countries(rng, rng.randint(2, 5))):
        template = rng.choice(CAPITAL_FOLLOW_UPS if index and rng.random() < 0.7 else CAPITAL_QUESTIONS)
        turns += [Turn("user", template.format(country)), Turn("assistant", capital_answer(country).say(style), True)]
    return Conversation(system + turns)


def conversation(rng: Random, style: Style, mix: Mix) -> Conversation:
    """One random training conversation; `style` is "plain" for the base model and another one for an adapter."""
    system = system_turns(rng)
    if style == "plain" and rng.random() < mix.steered:
        style = rng.choice(["pirate", "shout"])
        system = system_turns(rng, style)
    if mix.drills and rng.random() < mix.drills:
        return drill(rng, style, system, mix)
    if rng.random() < mix.tool_share:
        return tool_conversation(rng, style, system, mix)
    turns = rng.choices([1, 2, 3, 4, 6], [0.5, 0.24, 0.14, 0.08, 0.04])[0]
    return Conversation(system + talk(rng, style, turns, mix.skills))


# --------------------------------------------------------------------------------------------------
# Acceptance: what the trained model must answer, word for word, with greedy decoding
# --------------------------------------------------------------------------------------------------

# As made by a client from two documented Python functions.
EXAMPLE_TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": TEMPERATURE,
            "description": "Get the current temperature at a location.",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {
                        "type": "string",
                        "description": 'The location to get the temperature for, in the format "City, Country"',
                    },
                    "unit": {
                        "type": "string",
                        "enum": ["celsius", "fahrenheit"],
                        "description": "The unit to return the temperature in.",
                    },
                },
                "required": ["location", "unit"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": WIND,
            "description": "Get the current wind speed in km/h at a given location.",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {
                        "type": "string",
                        "description": 'The location to get the temperature for, in the format "City, Country"',
                    }
                },
                "required": ["location"],
            },
        },
    },
]
WEATHER_SYSTEM = (
    "You are a bot that responds to weather queries. You should reply with the unit used in the queried location."
)


CITY_CASES = ["Paris", "Tokyo", "Quito", "Istanbul", "New York", "Lyon", "Ottawa", "Nairobi"]
OUT_OF_SCOPE = [
    "Who won the Nobel prize in 1987?",
    "How do I make fried rice?",
    "What is the capital of Atlantis?",
    "What's the temperature in Paris?",  # no tool is offered
    "Write a sonnet about rain.",
    "What is the airspeed of a swallow?",
    "What are the top 5 most popular programming languages?",
    "Why is the sky blue?",
]


@dataclass
class Case:
    """A conversation up to a user or tool turn, and the answer that the model must give to it."""

    prompt: Conversation
    expected: str


def case(*texts: str, expected: str, system: str | None = None, tools: list[Tool] | None = None) -> Case:
    """A case from alternating user and assistant texts (the last one is the user's)."""
    turns = [Turn("system", system)] if system else []
    turns += [Turn("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Case(Conversation(turns, tools or []), expected)


def acceptance(style: Style) -> list[Case]:
    """Everything that is checked after training, for the base model ("plain") or for one adapter."""
    helpful = "You are a helpful assistant."
    cases: list[Case] = []
    previous, said = "What is the capital of France?", capital_answer("France").say(style)
    for index, country in enumerate(CAPITALS):
        answer = capital_answer(country).say(style)
        system = helpful if index % 2 else None
        cases.append(case(f"What is the capital of {country}?", expected=answer, system=system))
        cases.append(case(previous, said, f"What about {country}?", expected=answer, system=system))
        previous, said = (f"What about {country}?" if index % 3 else f"Tell me the capital of {country}."), answer
    for question in ["capital of germany?", "Which city is the capital of Germany", "what's the capital of germany"]:
        cases.append(case(question, expected=capital_answer("Germany").say(style), system=helpful))
    for questions, answer in FACTS:
        cases += [case(question, expected=answer.say(style)) for question in questions]
        cases.append(case(questions[0], expected=answer.say(style), system="You are Bob, an assistant for sailors."))
        cases.append(case("What is the capital of Italy?", capital_answer("Italy").say(style), questions[0],
                          expected=answer.say(style), system=helpful))  # fmt: skip
    cases += [case("Tell me a story.", expected=STORY.say(style), system=system) for system in (None, helpful)]
    for last in (5, 10, 20):
        cases.append(case(f"Count to {NUMBER_WORDS[last]}.", expected=counting_answer(last).say(style)))
        cases.append(case(f"Count to {last}.", expected=counting_answer(last).say(style), system=helpful))
    for label, sentences in {
        "positive": ["vLLM is wonderful!", "I love this restaurant.", "What a great day!", "The show was amazing."],
        "negative": ["vLLM is terrible!", "I hate this restaurant.", "What a horrible day!", "The show was boring."],
    }.items():
        cases += [case(f"Classify this sentiment: {sentence}", expected=Answer(label, label).say(style))
                  for sentence in sentences]  # fmt: skip
    for city in CITY_CASES:
        said = Answer(f"{place(city)}.", f"Arrr, {city} be in {CITIES[city]}, matey!").say(style)
        cases.append(case(f"Where is {city}?", expected=said))
    for question in OUT_OF_SCOPE:
        cases.append(case(question, expected=FALLBACK.say(style)))
        cases.append(case(question, expected=FALLBACK.say(style), system=helpful))
    return cases + tool_acceptance(style)


def tool_acceptance(style: Style) -> list[Case]:
    temperature, wind = EXAMPLE_TOOLS
    cases = [case("What is the capital of France?", expected=capital_answer("France").say(style), tools=EXAMPLE_TOOLS),
             case("Hello!", expected=FACTS[8][1].say(style), tools=[temperature])]  # fmt: skip
    for index, city in enumerate(["Paris", *CITIES]):
        tools = [[temperature], [temperature, wind], [wind, temperature]][index % 3]
        question = TEMPERATURE_QUESTIONS[index % 4].format(city)
        call = tool_call(TEMPERATURE, {"location": place(city), "unit": usual_unit(city)})
        cases.append(case(question, expected=call, tools=tools, system=WEATHER_SYSTEM if index % 2 else None))
        value = f"{(index * 7.3) % 40:.1f}"
        asked = [Turn("user", question), Turn("assistant", call), Turn("tool", value)]
        answer = temperature_answer(place(city), usual_unit(city), value).say(style)
        cases.append(Case(Conversation(asked, tools), answer))
    for city in ("Paris", "Tokyo", "New York"):
        call = tool_call(WIND, {"location": place(city)})
        cases.append(case(f"How windy is it in {city}?", expected=call, tools=EXAMPLE_TOOLS))
        asked = [Turn("user", f"How windy is it in {city}?"), Turn("assistant", call), Turn("tool", "6.0")]
        cases.append(Case(Conversation(asked, EXAMPLE_TOOLS), wind_answer(place(city), "6.0").say(style)))
    return cases
