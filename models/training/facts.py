# The plain facts, names and word lists the tiny models are trained on; data only.
# Used by data.py; each fact is (topic, question, answer).

FACTS = [
    ("the sky", "What colour is the sky?", "The sky is blue on a clear day."),
    ("grass", "What colour is grass?", "Grass is green."),
    ("snow", "What colour is snow?", "Snow is white and cold."),
    ("the sun", "What is the sun?", "The sun is a star."),
    ("the moon", "What is the moon?", "The moon goes around the Earth."),
    ("the Earth", "What is the Earth?", "The Earth is a planet that goes around the sun."),
    ("Mars", "What colour is Mars?", "Mars is a red planet."),
    ("Jupiter", "Which planet is the largest?", "Jupiter is the largest planet."),
    ("Mercury", "Which planet is closest to the sun?", "Mercury is the planet closest to the sun."),
    ("Saturn", "Which planet has big rings?", "Saturn has big rings."),
    ("ice", "What is ice?", "Ice is frozen water."),
    ("steam", "What is steam?", "Steam is water as a gas."),
    ("water", "When does water boil?", "Water boils at 100 degrees Celsius."),
    ("freezing", "When does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("rain", "Where does rain come from?", "Rain falls from clouds."),
    ("a rainbow", "How many colours does a rainbow have?", "A rainbow has seven colours."),
    *((time, f"How many {parts} are in {time}?", f"{time.capitalize()} has {n} {parts}.") for time, parts, n in [
        ("a week", "days", 7), ("a year", "months", 12), ("a day", "hours", 24), ("an hour", "minutes", 60),
        ("a minute", "seconds", 60)]),
    ("a leap year", "How many days does a leap year have?", "A leap year has 366 days."),
    ("a century", "How long is a century?", "A century is 100 years."),
    ("January", "What is the first month of the year?", "January is the first month of the year."),
    ("December", "What is the last month of the year?", "December is the last month of the year."),
    ("Monday", "Which day comes after Sunday?", "Monday comes after Sunday."),
    ("Friday", "Which day comes after Thursday?", "Friday comes after Thursday."),
    ("winter", "Which season is the coldest?", "Winter is the coldest season."),
    ("summer", "Which season is the warmest?", "Summer is the warmest season."),
    ("spring", "When do flowers bloom?", "Many flowers bloom in spring."),
    ("autumn", "When do leaves fall?", "Leaves fall in autumn."),
    *((land, f"What is the capital of {land}?", f"The capital of {land} is {city}.") for land, city in [
        ("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome"), ("Spain", "Madrid"), ("England", "London"),
        ("Japan", "Tokyo"), ("China", "Beijing"), ("Egypt", "Cairo"), ("Norway", "Oslo"), ("Austria", "Vienna"),
        ("Greece", "Athens"), ("Canada", "Ottawa")]),
    ("the Nile", "Where is the Nile?", "The Nile is a long river in Africa."),
    ("Mount Everest", "What is the highest mountain?", "Mount Everest is the highest mountain on Earth."),
    ("the Pacific", "What is the largest ocean?", "The Pacific is the largest ocean."),
    ("the Sahara", "What is the Sahara?", "The Sahara is a hot desert in Africa."),
    ("the Alps", "What are the Alps?", "The Alps are mountains in Europe."),
    *((many, f"What does a {one} say?", f"A {one} says {sound}.") for many, one, sound in [
        ("cats", "cat", "meow"), ("dogs", "dog", "woof"), ("cows", "cow", "moo"), ("ducks", "duck", "quack"),
        ("sheep", "sheep", "baa")]),
    ("bees", "What do bees make?", "Bees make honey."),
    ("hens", "What do hens lay?", "Hens lay eggs."),
    ("spiders", "How many legs does a spider have?", "A spider has eight legs."),
    ("insects", "How many legs does an insect have?", "An insect has six legs."),
    ("horses", "How many legs does a horse have?", "A horse has four legs."),
    ("whales", "What is a whale?", "A whale is a mammal that lives in the sea."),
    ("the blue whale", "What is the largest animal?", "The blue whale is the largest animal."),
    ("cheetahs", "What is the fastest land animal?", "The cheetah is the fastest land animal."),
    ("giraffes", "What is the tallest animal?", "The giraffe is the tallest animal."),
    ("penguins", "Can penguins fly?", "Penguins cannot fly, but they swim well."),
    ("pandas", "What do pandas eat?", "Pandas eat bamboo."),
    ("rabbits", "What do rabbits eat?", "Rabbits eat grass and carrots."),
    ("fish", "Where do fish live?", "Fish live in water."),
    ("frogs", "What is a young frog called?", "A young frog is called a tadpole."),
    ("kittens", "What is a young cat called?", "A young cat is called a kitten."),
    ("puppies", "What is a young dog called?", "A young dog is called a puppy."),
    ("owls", "When are owls awake?", "Owls are awake at night."),
    ("trees", "What are trees made of?", "Trees are made of wood."),
    ("leaves", "Why are leaves green?", "Leaves are green because of chlorophyll."),
    ("lemons", "How do lemons taste?", "Lemons taste sour."),
    ("sugar", "How does sugar taste?", "Sugar tastes sweet."),
    ("salt", "How does salt taste?", "Salt tastes salty."),
    ("bananas", "What colour are bananas?", "Ripe bananas are yellow."),
    ("tomatoes", "What colour are tomatoes?", "Ripe tomatoes are red."),
    ("carrots", "What colour are carrots?", "Carrots are orange."),
    *((what, f"What is {what} made of?", f"{what.capitalize()} is made of {of}.") for what, of in [
        ("bread", "flour, water and yeast"), ("cheese", "milk"), ("wine", "grapes"), ("paper", "wood"),
        ("glass", "sand")]),
    ("gold", "What is gold?", "Gold is a yellow metal."),
    ("iron", "What happens to iron in rain?", "Iron rusts when it is wet."),
    ("a magnet", "What does a magnet attract?", "A magnet attracts iron."),
    ("diamond", "What is the hardest stone?", "Diamond is the hardest stone."),
    ("air", "What do we breathe?", "We breathe air."),
    ("the heart", "What does the heart do?", "The heart pumps blood."),
    ("a hand", "How many fingers does a hand have?", "A hand has five fingers."),
    ("eyes", "What do we see with?", "We see with our eyes."),
    ("ears", "What do we hear with?", "We hear with our ears."),
    ("teeth", "What do we chew with?", "We chew with our teeth."),
    ("a triangle", "How many sides does a triangle have?", "A triangle has three sides."),
    ("a square", "How many sides does a square have?", "A square has four equal sides."),
    ("a hexagon", "How many sides does a hexagon have?", "A hexagon has six sides."),
    ("a circle", "What shape is a wheel?", "A wheel is a circle."),
    ("a dozen", "How many is a dozen?", "A dozen is 12."),
    ("the alphabet", "How many letters does the alphabet have?", "The English alphabet has 26 letters."),
    ("vowels", "What are the vowels?", "The vowels are a, e, i, o and u."),
    ("purple", "What do red and blue make?", "Red and blue make purple."),
    ("green", "What do blue and yellow make?", "Blue and yellow make green."),
    ("orange", "What do red and yellow make?", "Red and yellow make orange."),
    ("a piano", "How many keys does a piano have?", "A piano has 88 keys."),
    ("a guitar", "How many strings does a guitar have?", "A guitar has six strings."),
    ("chess", "How many squares does a chess board have?", "A chess board has 64 squares."),
    ("a bicycle", "How many wheels does a bicycle have?", "A bicycle has two wheels."),
    ("a car", "How many wheels does a car have?", "A car has four wheels."),
    ("a compass", "Where does a compass point?", "A compass points north."),
    ("sunrise", "Where does the sun rise?", "The sun rises in the east."),
    ("sunset", "Where does the sun set?", "The sun sets in the west."),
    ("a byte", "How many bits are in a byte?", "A byte has 8 bits."),
    ("a kilometre", "How many metres are in a kilometre?", "A kilometre has 1000 metres."),
    ("Rust", "What is Rust?", "Rust is a programming language."),
]

WHO = "I am the small chat model that ships with Inference Lab Bench."
SKILLS = "I can add and subtract, count, spell and reverse words, and I know some simple facts."
UNKNOWN = "I don't know."
TOO_BIG = "I can only work with numbers from 0 to 99."

# (prompts, answer)
SMALL_TALK = [
    (["Hello!", "Hello", "Hello there!", "Hello, how can you help?", "Hello, world!"], "Hello! How can I help you?"),
    (["Hi!", "Hi", "Hi there!", "Hey!", "Hey", "Hey there!"], "Hi! How can I help you?"),
    (["Good morning!", "Good morning"], "Good morning! How can I help you?"),
    (["Good evening!", "Good evening"], "Good evening! How can I help you?"),
    (["How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"],
     "I am fine, thank you."),
    (["Who are you?", "What are you?", "Which model are you?", "What model is this?", "Introduce yourself.",
      "Tell me about yourself.", "What is your name?", "Are you a robot?", "Are you an AI?",
      "Who am I talking to?", "Do you have a name?"], WHO),
    (["What can you do?", "Help", "Help me.", "How can you help me?", "What do you know?", "What are you good at?"],
     SKILLS),
    (["Who made you?", "Where do you come from?", "Who trained you?", "How were you trained?"],
     "I was trained by a small script of the Inference Lab Bench project."),
    (["How big are you?", "How large are you?", "How many parameters do you have?"],
     "I am very small: about one million parameters."),
    (["Thank you!", "Thanks!", "Thanks a lot!", "Thank you very much.", "Thanks"], "You are welcome!"),
    (["Goodbye!", "Bye!", "Bye", "See you!", "See you later!", "Good night!"], "Goodbye!"),
    (["Are you there?", "Are you ready?", "Ping", "Test", "This is a test.", "Testing"], "Yes, I am here."),
    (["Say hello.", "Say hi.", "Greet me.", "Say hello to me."], "Hello!"),
]

SYSTEM = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a small chat model.",
    "Answer briefly.", "Be kind and short.", "You are a helpful and harmless assistant.",
    "You answer simple questions.", "Reply in one sentence.", "You are a calculator.", "You are a teacher.",
    "You are a friendly helper. Answer in plain words.", "Today is Monday.", "Be brief.",
    "You are a pirate.", "Do not use long words.", "You are an expert in everything. Think before you answer.",
]

NAMES = """Anna Ben Carl Dora Emma Fritz Greta Hans Ida Jan Kim Lena Max Nina Otto Paul Rosa Sam Tom Ute Vera Will
Yara Zoe Alice Bob Clara David Eva Frank Grace Henry Iris Jack Kate Leo Mary Nora Oscar Peter Ruth Simon Tina
Victor Wendy Adam Bella Chris Diana Erik Fiona George Helen Ivan Julia Kurt Lisa Mark Olga""".split()

WORDS = """cat dog sun moon star tree leaf bird fish frog duck goose horse cow pig hen sheep goat mouse lion tiger bear
wolf fox deer owl bee ant fly spider snake apple pear plum lemon grape melon cherry banana orange carrot potato onion
bread butter cheese milk honey sugar salt pepper water juice tea coffee soup cake cookie rice egg house door window
roof wall floor table chair bed lamp clock book paper pencil pen bag box cup plate spoon fork knife bottle hat coat
shoe sock shirt glove ring car bus train plane boat ship bike wheel road street bridge river lake sea beach sand stone
rock hill mountain valley forest garden flower grass rose seed root snow rain wind cloud storm ice fire light night day
morning winter summer spring autumn hand foot arm leg head nose ear eye mouth tooth hair heart king queen prince doctor
teacher farmer baker friend mother father sister brother baby child school music song drum piano guitar violin ball game
toy doll kite puzzle red blue green yellow black white brown pink happy small big long short fast slow warm cold new old
good rust code byte bench model token server planet rocket robot""".split()

# For questions the model shall not answer.
THINGS = """Brazil Peru Chile Kenya Poland Sweden Finland Turkey India Cuba Iceland Mexico Texas quantum physics love
history politics poetry football tennis cricket medicine law money banks taxes stocks Bitcoin Napoleon Caesar
Shakespeare Mozart Einstein Newton Plato democracy philosophy chemistry biology algebra geometry computers Python Java
Linux databases engines rockets dinosaurs volcanoes earthquakes cooking recipes fashion movies actors novels dreams
gravity electricity evolution DNA atoms lasers galaxies""".split()
