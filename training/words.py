"""
The words that the corpus is made of: countries, names, animals, things.

Plain data and nothing else. Every list is our own selection of common knowledge.
"""

from __future__ import annotations

# English name, English capital, Chinese name, Chinese capital; one country a line.
_COUNTRIES = """
France,Paris,法国,巴黎
Germany,Berlin,德国,柏林
Italy,Rome,意大利,罗马
Spain,Madrid,西班牙,马德里
Portugal,Lisbon,葡萄牙,里斯本
the United Kingdom,London,英国,伦敦
Ireland,Dublin,爱尔兰,都柏林
Belgium,Brussels,比利时,布鲁塞尔
the Netherlands,Amsterdam,荷兰,阿姆斯特丹
Switzerland,Bern,瑞士,伯尔尼
Austria,Vienna,奥地利,维也纳
Poland,Warsaw,波兰,华沙
Hungary,Budapest,匈牙利,布达佩斯
Greece,Athens,希腊,雅典
Turkey,Ankara,土耳其,安卡拉
Russia,Moscow,俄罗斯,莫斯科
Ukraine,Kyiv,乌克兰,基辅
Sweden,Stockholm,瑞典,斯德哥尔摩
Norway,Oslo,挪威,奥斯陆
Denmark,Copenhagen,丹麦,哥本哈根
Finland,Helsinki,芬兰,赫尔辛基
Iceland,Reykjavik,冰岛,雷克雅未克
Romania,Bucharest,罗马尼亚,布加勒斯特
Bulgaria,Sofia,保加利亚,索非亚
Serbia,Belgrade,塞尔维亚,贝尔格莱德
Croatia,Zagreb,克罗地亚,萨格勒布
Slovakia,Bratislava,斯洛伐克,布拉迪斯拉发
Slovenia,Ljubljana,斯洛文尼亚,卢布尔雅那
Estonia,Tallinn,爱沙尼亚,塔林
Latvia,Riga,拉脱维亚,里加
Lithuania,Vilnius,立陶宛,维尔纽斯
China,Beijing,中国,北京
Japan,Tokyo,日本,东京
South Korea,Seoul,韩国,首尔
North Korea,Pyongyang,朝鲜,平壤
Mongolia,Ulaanbaatar,蒙古,乌兰巴托
India,New Delhi,印度,新德里
Pakistan,Islamabad,巴基斯坦,伊斯兰堡
Nepal,Kathmandu,尼泊尔,加德满都
Bangladesh,Dhaka,孟加拉国,达卡
Thailand,Bangkok,泰国,曼谷
Vietnam,Hanoi,越南,河内
Laos,Vientiane,老挝,万象
Cambodia,Phnom Penh,柬埔寨,金边
Malaysia,Kuala Lumpur,马来西亚,吉隆坡
Singapore,Singapore,新加坡,新加坡
Indonesia,Jakarta,印度尼西亚,雅加达
the Philippines,Manila,菲律宾,马尼拉
Iran,Tehran,伊朗,德黑兰
Iraq,Baghdad,伊拉克,巴格达
Israel,Jerusalem,以色列,耶路撒冷
Saudi Arabia,Riyadh,沙特阿拉伯,利雅得
Qatar,Doha,卡塔尔,多哈
Jordan,Amman,约旦,安曼
Syria,Damascus,叙利亚,大马士革
Afghanistan,Kabul,阿富汗,喀布尔
Egypt,Cairo,埃及,开罗
Morocco,Rabat,摩洛哥,拉巴特
Algeria,Algiers,阿尔及利亚,阿尔及尔
Tunisia,Tunis,突尼斯,突尼斯市
Libya,Tripoli,利比亚,的黎波里
Sudan,Khartoum,苏丹,喀土穆
Ethiopia,Addis Ababa,埃塞俄比亚,亚的斯亚贝巴
Kenya,Nairobi,肯尼亚,内罗毕
Uganda,Kampala,乌干达,坎帕拉
Ghana,Accra,加纳,阿克拉
Nigeria,Abuja,尼日利亚,阿布贾
Senegal,Dakar,塞内加尔,达喀尔
Angola,Luanda,安哥拉,罗安达
Zambia,Lusaka,赞比亚,卢萨卡
South Africa,Pretoria,南非,比勒陀利亚
the United States,Washington,美国,华盛顿
Canada,Ottawa,加拿大,渥太华
Mexico,Mexico City,墨西哥,墨西哥城
Cuba,Havana,古巴,哈瓦那
Panama,Panama City,巴拿马,巴拿马城
Colombia,Bogota,哥伦比亚,波哥大
Venezuela,Caracas,委内瑞拉,加拉加斯
Peru,Lima,秘鲁,利马
Ecuador,Quito,厄瓜多尔,基多
Brazil,Brasilia,巴西,巴西利亚
Chile,Santiago,智利,圣地亚哥
Argentina,Buenos Aires,阿根廷,布宜诺斯艾利斯
Uruguay,Montevideo,乌拉圭,蒙得维的亚
Paraguay,Asuncion,巴拉圭,亚松森
Australia,Canberra,澳大利亚,堪培拉
New Zealand,Wellington,新西兰,惠灵顿
Fiji,Suva,斐济,苏瓦
"""
COUNTRIES: list[tuple[str, str, str, str]] = [
    tuple(line.split(","))  # type: ignore[misc]
    for line in _COUNTRIES.strip().splitlines()
]
# Other ways people write some of them.
ALIASES = {
    "the United States": ["the USA", "America", "the United States of America"],
    "the United Kingdom": ["the UK", "Great Britain", "England"],
    "the Netherlands": ["Holland"],
    "South Korea": ["Korea"],
}

CITIES_EN = """London Paris Berlin Tokyo Beijing Madrid Rome Chicago Boston Seattle Denver Dallas
Houston Miami Toronto Sydney Melbourne Mumbai Shanghai Hamburg Munich Milan Barcelona Lyon Zurich
Geneva Porto Krakow Prague Oslo Cairo Lagos Nairobi Lima Santiago Bogota Quito Havana Osaka Kyoto
Busan Seoul Hanoi Bangkok Jakarta Manila Delhi Karachi Tehran Istanbul Athens Dublin Glasgow
Liverpool Manchester Leeds Austin Portland Phoenix Detroit Atlanta Montreal Vancouver""".split()
CITIES_EN += [
    "New York",
    "Los Angeles",
    "San Francisco",
    "Hong Kong",
    "Cape Town",
    "Rio de Janeiro",
]
CITIES_ZH = """北京 上海 广州 深圳 杭州 南京 成都 重庆 武汉 西安 天津 苏州 长沙 青岛 大连 厦门 昆明
沈阳 哈尔滨 济南 郑州 福州 合肥 南昌 太原 兰州 拉萨 海口 三亚 桂林 无锡 宁波 温州 东京 巴黎 伦敦 纽约
首尔 柏林 罗马 马德里 莫斯科 悉尼 香港 台北 澳门""".split()

NAMES_EN = """Tom Anna Ben Lily Max Lucy Sam Mia Jack Emma Leo Ella Noah Zoe Adam Eva Paul Nina Mark
Sara Luke Amy David Julia Peter Laura Daniel Alice Henry Clara Oscar Ruby Felix Rosa Hugo Ivy Simon
Grace Victor Jane Robert Kate George Helen Martin Diana Oliver Sophie Thomas Maria James Linda
William Karen Richard Nancy Joseph Betty Charles Sandra Arthur Bella Carl Daisy Edward Fiona Greta
Harry Irene Kevin Molly Nick Olga Pedro Quinn Rita Steve Tina Uma Vera Walter Yara Zack Ahmed
Fatima Raj Priya Kenji Yuki Chen Wei Ming Aria Nova Ada Alan Grace Linus Bob Carol Dave Eve Frank
John Mary Mike Susan Chris Pat Alex Jordan Taylor""".split()
SURNAMES_ZH = list("王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗")
GIVEN_ZH = list("明华强伟芳娜静丽敏军杰涛超霞平刚玲红梅兰云龙飞雪晨阳宇浩欣怡佳乐天文思雨心")

SYLLABLES = """ba be bi bo bu da de di do du fa fe fi fo ga go gu ha he hi ja jo ka ke ki ko ku la le
li lo lu ma me mi mo mu na ne ni no nu pa pe pi po qua ra re ri ro ru sa se si so su ta te ti to tu
va ve vi vo wa we wi ya yo za ze zi zo zu bra cre dra fri gro kla mar nor pel qui sto tal ver wen
xan yor zel tha sha chi lin ron dar vin mer kos bel fen gar hol jun kel lor mon""".split()

ANIMALS = """dog cat rabbit fox bear mouse bird horse frog duck owl turtle dragon lion tiger
elephant monkey pig cow sheep goat wolf squirrel penguin whale fish dolphin bee ant butterfly
hedgehog deer panda koala kangaroo giraffe zebra camel parrot snail spider crab octopus unicorn
kitten puppy robot wizard knight princess king queen pirate farmer baker teacher sailor painter
doctor boy girl giant fairy ghost snowman clown astronaut gardener musician""".split()
THINGS = """boat car train kite ball tree river mountain castle garden clock lamp book piano bicycle
balloon rocket moon star cloud house bridge island forest lake treasure map hat umbrella toaster
computer pencil key door mirror candle apple cake cookie shoe drum guitar teapot lighthouse
snowflake rainbow flower windmill""".split()
ANIMALS_ZH = {
    "小狗": "狗", "小猫": "猫", "兔子": "兔", "狐狸": "狐", "小熊": "熊", "老鼠": "鼠", "小鸟": "鸟",
    "小马": "马", "青蛙": "蛙", "鸭子": "鸭", "猫头鹰": "鹰", "乌龟": "龟", "龙": "龙", "狮子": "狮",
    "老虎": "虎", "大象": "象", "猴子": "猴", "小猪": "猪", "小羊": "羊", "松鼠": "鼠", "企鹅": "鹅",
    "鲸鱼": "鲸", "海豚": "豚", "熊猫": "熊", "机器人": "机", "公主": "公", "国王": "王", "小船": "船",
    "女孩": "女", "男孩": "男", "农夫": "农", "老师": "师",
}  # fmt: skip
PETS_ZH = (
    "咪咪 豆豆 毛毛 贝贝 乐乐 小白 小黑 小花 阿福 球球 点点 多多 果果 糖糖 亮亮 旺旺 圆圆".split()
)

COLOURS = {
    "red": "红色", "blue": "蓝色", "green": "绿色", "yellow": "黄色", "purple": "紫色",
    "orange": "橙色", "pink": "粉色", "black": "黑色", "white": "白色", "brown": "棕色",
    "grey": "灰色", "gold": "金色", "silver": "银色",
}  # fmt: skip
FOODS = {
    "pizza": "比萨", "rice": "米饭", "soup": "汤", "bread": "面包", "noodles": "面条",
    "cheese": "奶酪", "apples": "苹果", "chocolate": "巧克力", "dumplings": "饺子", "salad": "沙拉",
    "fish": "鱼", "cake": "蛋糕", "bananas": "香蕉", "eggs": "鸡蛋", "ice cream": "冰淇淋",
}  # fmt: skip
CONDITIONS = {
    "sunny": "晴天", "cloudy": "多云", "rainy": "下雨", "snowy": "下雪", "windy": "刮风",
    "foggy": "有雾", "stormy": "暴风雨", "clear": "晴朗", "hot": "炎热", "cold": "寒冷",
}  # fmt: skip
